"""Held-out evaluation: plain counts, unscorable completions apart, and no random numbers of training."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from assay.models.policy import Policy
from assay.rollout.paged import PagedEngine
from assay.train.evaluate import evaluate, summarise
from assay.types import Row, Sample, Verdict

NAN = math.nan
ROWS = [Row(f"row-{i}", "p", str(i)) for i in range(6)]
PROMPTS = [(5, 9 + i) for i in range(6)]


def run(policy: Policy, seed: int = 0) -> dict[str, object]:
    seen: list[tuple[str, str]] = []

    def verify(row: Row, text: str) -> Verdict:
        seen.append((row.row_id, text))
        return Verdict(len(text) / 6, "wrong", False)

    result = evaluate(
        PagedEngine(policy),
        ROWS,
        PROMPTS,
        policy.decode,
        verify,
        max_new_tokens=6,
        temperature=1.0,
        seed=seed,
        on_progress=lambda *_: None,
    )
    return {**result, "seen": sorted(seen)}


def test_one_sampled_and_one_greedy_completion_of_every_row(load: Callable[..., Policy]) -> None:
    result = run(load())
    seen = result["seen"]
    assert isinstance(seen, list)
    assert [row_id for row_id, _ in seen] == [row.row_id for row in ROWS for _ in (0, 1)]
    assert {kind: part["n"] for kind, part in result.items() if isinstance(part, dict)} == {"sampled": 6, "greedy": 6}


def test_it_repeats_and_only_the_sampled_part_depends_on_the_seed(load: Callable[..., Policy]) -> None:
    policy = load()
    first = run(policy)
    assert run(policy) == first
    other = run(policy, seed=1)
    assert other["greedy"] == first["greedy"]
    assert other["sampled"] != first["sampled"]


def test_a_largest_seed_is_a_seed(load: Callable[..., Policy]) -> None:
    run(load(), seed=2**63 - 1)


def test_the_numbers_by_hand(sample: Callable[..., Sample]) -> None:
    samples = [
        sample(0, 0, 1.0, tokens=(5, 6, 7), finish="length"),
        sample(1, 1, 0.5, tokens=(5,)),
        sample(2, 2, NAN, tokens=(5, 2)),
        sample(3, 3, 0.0, tokens=(5, 2)),
    ]
    result = summarise(samples)
    assert (result["n"], result["unscorable"]) == (3, 1)
    assert result["pass_at"] == {"1": pytest.approx(1 / 3)}
    # Wilson 1927 for 1 of 3
    assert result["pass_at_interval"]["1"] == pytest.approx([0.0615, 0.7923], abs=1e-4)
    assert result["mean_reward"] == pytest.approx(0.5)
    half = 1.959964 * 0.5 / math.sqrt(3)
    assert result["mean_reward_interval"] == pytest.approx([0.5 - half, 0.5 + half])
    assert result["length_mean"] == 2.0
    assert result["truncation_rate"] == 0.25
    assert result["components"] == {"part": pytest.approx(0.5)}


def test_nothing_scorable_is_null_in_json_and_no_share(sample: Callable[..., Sample]) -> None:
    result = json.loads(json.dumps(summarise([sample(0, 0, NAN)]), allow_nan=False))
    assert (result["n"], result["unscorable"]) == (0, 1)
    assert result["pass_at"] == {"1": None}
    assert result["pass_at_interval"] == {"1": [0.0, 1.0]}
    assert result["mean_reward"] is None
    assert result["mean_reward_interval"] == [None, None]
