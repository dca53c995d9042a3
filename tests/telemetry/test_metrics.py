"""A step's metrics against numbers worked by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest

from assay.telemetry.metrics import (
    METRICS,
    explain,
    mean,
    percentile,
    preference_metrics,
    rollout_metrics,
    standard_deviation,
)
from assay.types import FinishReason, Group, Row, Sample, Segment, Status, Trajectory, Verdict

State = Literal["informative", "zero_variance", "unscorable"]
NAN = math.nan


def sample(
    reward: float,
    status: Status,
    length: int = 1,
    *,
    correct: bool = False,
    finish: FinishReason = "stop",
    milliseconds: float = 1.0,
    components: Mapping[str, float] | None = None,
) -> Sample:
    trajectory = Trajectory(0, 0, (1,), (Segment((5,) * length, True, (-0.5,) * length, 0),), finish)
    return Sample(
        trajectory, Row("r", "p", 1), "text", Verdict(reward, status, correct, "", milliseconds, components or {})
    )


def group(state: State, samples: Sequence[Sample]) -> Group:
    return Group(0, tuple(samples), (0.0,) * len(samples), state)


def worked_step() -> list[Group]:
    return [
        group(
            "informative",
            [
                sample(1.0, "ok", 4, correct=True, milliseconds=10, components={"a": 1.0, "b": 0.5}),
                sample(0.0, "timeout", 10, finish="length", milliseconds=100, components={"a": 0.0}),
            ],
        ),
        group("zero_variance", [sample(0.5, "wrong", 2, milliseconds=20), sample(0.5, "wrong", 2, milliseconds=30)]),
        group("unscorable", [sample(NAN, "crash", 7, components={"a": 9.0}), sample(0.5, "ok", 3, correct=True)]),
    ]


def test_a_worked_step() -> None:
    got = rollout_metrics(worked_step())
    expected = {
        "reward_mean": 0.5,  # (1 + 0 + .5 + .5 + .5) / 5: the NaN is no zero
        "reward_std": math.sqrt(0.5 / 5),
        "correct_rate": 2 / 5,
        "component/a": 0.5,  # the crash's 9 does not count
        "component/b": 0.5,  # only one completion has it
        "zero_variance_rate": 1 / 2,  # of the two scorable groups
        "informative_rate": 1 / 3,  # of all groups
        "unscorable_rate": 1 / 6,
        "unscorable_groups": 1.0,
        "length_mean": 28 / 6,
        "length_max": 10.0,
        "truncation_rate": 1 / 6,
        "status/ok": 2.0,
        "status/wrong": 2.0,
        "status/timeout": 1.0,
        "status/crash": 1.0,
        "status/unscorable": 0.0,
        "verifier_ms_p50": 15.0,  # of 1, 1, 10, 20, 30, 100
        "verifier_ms_p99": 96.5,  # position 4.95: 30 + 0.95 · 70
    }
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, abs=1e-12), name


def test_a_mean_over_nothing_is_none_not_zero() -> None:
    got = rollout_metrics([group("unscorable", [sample(NAN, "crash"), sample(NAN, "unscorable")])])
    assert got["reward_mean"] is None
    assert got["reward_std"] is None
    assert got["correct_rate"] is None
    assert got["zero_variance_rate"] is None
    assert got["informative_rate"] == 0.0
    assert got["unscorable_rate"] == 1.0


def test_no_groups_at_all() -> None:
    got = rollout_metrics([])
    counts = {name: value for name, value in got.items() if value is not None}
    assert counts == {"unscorable_groups": 0.0, **{k: 0.0 for k in got if k.startswith("status/")}}


def test_the_state_is_taken_from_the_guard_and_not_judged_again() -> None:
    alike = [sample(0.5, "ok"), sample(0.5, "ok")]
    assert rollout_metrics([group("informative", alike)])["zero_variance_rate"] == 0.0
    assert rollout_metrics([group("zero_variance", alike)])["zero_variance_rate"] == 1.0


def test_worked_pairs() -> None:
    assert preference_metrics([0.5, -0.25, 0.0, 1.0], [0.25, -1.0, 0.0, 1.5]) == {
        "dpo_accuracy": 0.5,  # the third pair is a tie: none is larger
        "dpo_margin": 0.125,  # (.25 + .75 + 0 - .5) / 4
        "dpo_reward/chosen": 0.3125,
        "dpo_reward/rejected": 0.1875,
    }
    assert set(preference_metrics([], []).values()) == {None}
    assert [key for key in preference_metrics([], []) if explain(key) is None] == []


def test_every_metric_is_explained_in_one_sentence() -> None:
    assert [key for key in rollout_metrics(worked_step()) if explain(key) is None] == []
    for key, sentence in METRICS.items():
        assert sentence.endswith("."), key
        assert ". " not in sentence, key


def test_the_fields_that_the_contract_promises_are_explained() -> None:
    promised = (
        "step reward_mean zero_variance_rate informative_rate kl_k3_mean kl_k3_min entropy length_mean truncation_rate "
        "clip_rate grad_norm learning_rate tokens_per_second seconds samples_total ratio_max_deviation canary_gap "
        "sampler_logprob_gap_max seconds_rollout seconds_update trained_samples"
    )
    assert set(promised.split()) <= METRICS.keys()


def test_the_documentation_has_the_same_sentences() -> None:
    text = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
    for key, sentence in METRICS.items():
        escaped = sentence.replace("|", "\\|")
        assert f"| `{key}` | {escaped} |" in text, key


def test_explain_knows_families_and_nothing_else() -> None:
    assert explain("component/json_fields") == METRICS["component/<name>"]
    assert explain("status/ok") == METRICS["status/<status>"]
    assert explain("reward_mean") == METRICS["reward_mean"]
    assert explain("component") is None
    assert explain("invented/x") is None


def test_percentile_mean_and_standard_deviation() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([1.0, 2.0], 99) == pytest.approx(1.99)
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) is None
    assert mean([]) is None
    assert standard_deviation([1.0, 3.0]) == 1.0
    assert standard_deviation([]) is None
