"""Pairs from completions: which a group gives, why another gives none, and that training reads them as they were."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import assay
from assay.config import Config
from assay.data.preferences import load_preferences
from assay.errors import ConfigError
from assay.models.policy import Policy
from assay.telemetry.sinks import RolloutFiles
from assay.telemetry.store import RunFolder
from assay.train import dpo, pairs
from assay.types import Group, Row, Sample, Segment, Trajectory, Verdict

NAN = math.nan


def completion(sample_id: int, reward: float, text: str, *, finish: str = "stop", group_id: int = 0) -> dict[str, Any]:
    return {
        **{"sample_id": sample_id, "group_id": group_id, "prompt": f"prompt {group_id}", "answer": "a"},
        **{"reward": reward, "completion": text, "finish_reason": finish},
    }


def group(*rewards: float, group_id: int = 0) -> list[dict[str, Any]]:
    """Texts a, b, c, … with these rewards."""
    return [completion(i, r, chr(97 + i), group_id=group_id) for i, r in enumerate(rewards)]


def texts(found: Any) -> list[str]:
    """``ab``: a is chosen, b rejected."""
    return [pair.chosen + pair.rejected for pair in found]


@pytest.mark.parametrize(
    ("rewards", "margin", "per_group", "expected"),
    [
        ([0.0, 1.0, 0.5], 0.0, 1, ["ba"]),
        (
            [0.0, 1.0, 0.5],
            0.0,
            9,
            ["ba", "bc", "ca"],
        ),  # equal gaps of .5: both have rank sum 1, the better chosen first
        ([0.0, 1.0, 0.4], 0.0, 9, ["ba", "bc", "ca"]),  # gaps 1, .6, .4
        ([0.0, 1.0, 0.4], 0.5, 9, ["ba", "bc"]),
        ([0.0, 1.0, 0.4], 0.0, 2, ["ba", "bc"]),
        ([1.0, 0.0, 1.0, 0.0], 0.0, 9, ["ad", "ab", "cd", "cb"]),
        ([1.0, 0.0, 0.0], 0.0, 1, ["ac"]),
        ([0.7, 0.4], 0.3, 1, ["ab"]),  # 0.29999999999999993
        ([0.7, 0.4], 0.31, 1, []),
        ([-1.0, -2.0], 1.0, 1, ["ab"]),
        ([0.3, 0.1 + 0.2], 0.0, 1, []),  # rounding, and no preference
        ([0.3, 0.3], 0.0, 1, []),
        ([NAN, 1.0, 0.0], 0.0, 1, ["bc"]),
    ],
)
def test_worked_groups(rewards: list[float], margin: float, per_group: int, expected: list[str]) -> None:
    found, reason = pairs.pairs_of_group(group(*rewards), margin=margin, per_group=per_group)
    assert texts(found) == expected
    assert reason == (None if expected else pairs.TOO_CLOSE)
    assert pairs.pairs_of_group(group(*rewards)[::-1], margin=margin, per_group=per_group) == (found, reason)


def test_what_a_pair_holds() -> None:
    found, _ = pairs.pairs_of_group(group(0.25, 0.75))
    assert found == [pairs.RewardPair("prompt 0", "a", "b", "a", 0.75, 0.25)]
    assert json.loads(found[0].to_json()) == {
        "prompt": "prompt 0",
        "chosen": "b",
        "rejected": "a",
        "answer": "a",
        "rewards": {"chosen": 0.75, "rejected": 0.25},
    }


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([completion(0, 1.0, "a"), completion(1, NAN, "b")], pairs.UNGRADED),
        ([completion(0, NAN, "a"), completion(1, NAN, "b")], pairs.UNGRADED),
        ([completion(0, 1.0, "a"), completion(1, 0.0, "b", finish="length")], pairs.CUT_OFF),
        ([completion(0, 1.0, "a", finish="length"), completion(1, 0.0, "b")], pairs.CUT_OFF),
        ([completion(0, 1.0, "a"), completion(1, 0.0, "a")], pairs.ALIKE),
        ([completion(0, 0.5, "a"), completion(1, 0.5, "b")], pairs.TOO_CLOSE),
    ],
)
def test_a_group_without_a_pair_says_why(members: list[dict[str, Any]], reason: str) -> None:
    assert pairs.pairs_of_group(members) == ([], reason)


def test_of_a_text_that_is_there_twice_the_first_counts() -> None:
    twice = [completion(0, 1.0, "a"), completion(1, 0.0, "a"), completion(2, 0.5, "b")]
    assert texts(pairs.pairs_of_group(twice, per_group=9)[0]) == ["ab"]


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=9), st.integers(1, 12))
def test_the_widest_pairs_are_those_of_a_full_search(rewards: list[float], count: int) -> None:
    members = group(*rewards)
    ranked = sorted(members, key=lambda c: (-c["reward"], c["sample_id"]))
    place = {c["completion"]: i for i, c in enumerate(ranked)}
    every = [(w, l) for w, l in itertools.permutations(members, 2) if w["reward"] > l["reward"]]  # noqa: E741
    every.sort(
        key=lambda p: (
            p[1]["reward"] - p[0]["reward"],
            place[p[0]["completion"]] - place[p[1]["completion"]],
            place[p[0]["completion"]],
        )
    )
    expected = [w["completion"] + l["completion"] for w, l in every[:count]]  # noqa: E741
    assert texts(pairs.pairs_of_group(members, per_group=count)[0]) == expected


def test_a_pair_is_there_once_and_groups_are_counted() -> None:
    groups = [group(1.0, 0.0), group(0.0, 1.0, group_id=1), group(1.0, 0.0), group(0.5, 0.5), group(1.0, 0.0, 0.5)]
    found = pairs.select_pairs(groups, per_group=2)
    assert [(p.prompt, p.chosen + p.rejected) for p in found.pairs] == [
        ("prompt 0", "ab"),
        ("prompt 1", "ba"),
        ("prompt 0", "ac"),
    ]
    assert (found.groups, found.without) == (5, {pairs.REPEATED: 1, pairs.TOO_CLOSE: 1})
    assert pairs.select_pairs([]) == pairs.Selection((), 0, {})


@pytest.fixture
def trained(config: Callable[..., Config]) -> RunFolder:
    return assay.train(config(train={"steps": 3}, rollout={"max_new_tokens": 24, "prompts_per_step": 8})).folder


def test_pairs_of_a_run_are_its_completions_again(trained: RunFolder, load: Callable[..., Policy]) -> None:
    found = pairs.pairs_of_run(trained, per_group=3)
    assert len(found.pairs) > 10
    assert found.groups == 24
    pairs.write_pairs(Path("new/pairs.jsonl"), found.pairs)
    read = load_preferences("new/pairs.jsonl")
    policy = load()
    sampled = {
        (row["prompt"], row["completion"]): (tuple(row["completion_ids"]), row["reward"], row["answer"])
        for step in trained.rollout_steps()
        for row in trained.read_rollouts(step)
        if row["finish_reason"] == "stop"
    }
    for preference, pair, encoded in zip(read, found.pairs, dpo.encode_pairs(read, policy), strict=True):
        prompt = preference.row.prompt
        assert prompt == pair.prompt
        for text, reward, sample in zip(
            (preference.chosen, preference.rejected),
            (pair.chosen_reward, pair.rejected_reward),
            encoded.samples,
            strict=True,
        ):
            ids, its_reward, answer = sampled[prompt, text]
            assert (reward, preference.row.answer) == (its_reward, answer)
            # The same tokens, but for ids that this model has and its tokenizer has not, which no text can hold; the
            # end is the tokenizer's own end token, whichever of several ended the completion.
            known = tuple(i for i in ids[:-1] if i < len(policy.tokenizer))
            assert sample.completion_ids == (*known, policy.end_id)
            assert ids[-1] in policy.end_ids


def test_only_the_steps_asked_for(trained: RunFolder) -> None:
    whole = pairs.pairs_of_run(trained)
    parts = [pairs.pairs_of_run(trained, first=a, last=b) for a, b in ((None, 1), (2, 2), (3, None))]
    assert [part.groups for part in parts] == [8, 8, 8]
    assert tuple(pair for part in parts for pair in part.pairs) == whole.pairs
    with pytest.raises(ConfigError, match="has completions of steps 1 to 3, and none of those asked"):
        pairs.pairs_of_run(trained, first=4)


def test_a_run_without_completions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(ConfigError, match="has no completions to make pairs of; only runs of `assay train` keep them"):
        pairs.pairs_of_run(RunFolder(tmp_path))


def test_chat_prompts_and_any_text_come_back(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Größe?\u2028"})
    row = Row("r", messages, {"a": [1, None], "b": "\ud800", "c": NAN})
    samples = tuple(
        Sample(
            Trajectory(i, 0, (1,), (Segment((5, 2), True, (-1.0, -1.0), 0),), "stop"), row, text, Verdict(r, "ok", True)
        )
        for i, (text, r) in enumerate((("1 m\n\x00", 1.0), ("", 0.0)))
    )
    RolloutFiles(tmp_path / "rollouts").write(1, [Group(0, samples, (1.0, -1.0), "informative")])
    pairs.write_pairs(tmp_path / "p.jsonl", pairs.pairs_of_run(RunFolder(tmp_path)).pairs)
    (read,) = load_preferences(str(tmp_path / "p.jsonl"))
    assert (read.row.prompt, read.chosen, read.rejected) == (messages, "1 m\n\x00", "")
    assert read.row.answer == {"a": [1, None], "b": "\ud800", "c": None}  # JSON has no NaN
    assert "Größe" in (tmp_path / "p.jsonl").read_text()


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written: .*; choose another --out"):
        pairs.write_pairs(tmp_path / "file" / "p.jsonl", [])
