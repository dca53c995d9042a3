"""What is added to the verifiers' rewards is shown, and changes nothing of what is correct."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from assay.models.reward_model import RewardModel
from assay.train.shaping import with_overlong_penalty, with_reward_model
from assay.types import Sample, Verdict


def test_the_penalty_grows_over_the_buffer(sample: Callable[..., Sample]) -> None:
    samples = [sample(i, 0, 1.0, tokens=(5,) * length) for i, length in enumerate((1, 6, 7, 8, 10))]
    shaped = with_overlong_penalty(samples, max_length=10, buffer=4)
    assert [s.verdict.reward for s in shaped] == [1.0, 1.0, 0.75, 0.5, 0.0]
    assert [s.verdict.components["overlong"] for s in shaped] == [0.0, 0.0, -0.25, -0.5, -1.0]
    assert all(s.verdict.correct for s in shaped)


def test_without_a_buffer_nothing_changes_and_nothing_is_shown(sample: Callable[..., Sample]) -> None:
    samples = [sample(0, 0, 1.0)]
    assert with_overlong_penalty(samples, max_length=10, buffer=0) == samples


def test_an_unscorable_one_stays_unscorable(sample: Callable[..., Sample]) -> None:
    (shaped,) = with_overlong_penalty([sample(0, 0, math.nan)], max_length=2, buffer=1)
    assert math.isnan(shaped.verdict.reward)


def test_a_buffer_longer_than_the_limit_is_refused(sample: Callable[..., Sample]) -> None:
    with pytest.raises(ValueError, match="between 1 and the length limit 10, got 11"):
        with_overlong_penalty([sample(0, 0, 1.0)], max_length=10, buffer=11)


class FixedScores:
    """A reward model whose scores are given."""

    def __init__(self, *scores: float) -> None:
        self._scores = scores

    def score(self, texts: list[tuple[str, str]]) -> list[float]:
        assert texts == [("prompt", "text")] * len(self._scores)
        return list(self._scores)


def scored(samples: list[Sample], *scores: float, weight: float = 0.5) -> list[Verdict]:
    return [s.verdict for s in with_reward_model(samples, cast(RewardModel, FixedScores(*scores)), weight)]


def test_the_score_is_added_and_what_is_correct_stays_the_verifiers(sample: Callable[..., Sample]) -> None:
    right, wrong = scored([sample(0, 0, 1.0), sample(1, 0, 0.0)], -4.0, 3.0)
    assert (right.reward, right.correct, right.status) == (-1.0, True, "ok")
    assert (wrong.reward, wrong.correct, wrong.status) == (1.5, False, "wrong")
    assert wrong.components == {"part": 0.0, "reward_model": 3.0}


def test_without_verifiers_a_score_above_zero_is_correct(sample: Callable[..., Sample]) -> None:
    bare = [
        replace(s, verdict=Verdict(math.nan, "unscorable", False, "no verifier applies")) for s in [sample(0, 0, 0.0)]
    ]
    (good,), (bad,) = scored(bare, 3.0), scored(bare, -3.0)
    assert (good.reward, good.correct, good.status, good.reason) == (1.5, True, "ok", "")
    assert (bad.reward, bad.correct, bad.status) == (-1.5, False, "wrong")


def test_a_verifiers_status_stays(sample: Callable[..., Sample]) -> None:
    (late,) = scored([sample(0, 0, 0.0, status="timeout")], 3.0)
    assert (late.reward, late.status, late.correct) == (1.5, "timeout", False)


def test_what_cannot_be_graded_or_scored_has_no_reward(sample: Callable[..., Sample]) -> None:
    crashed = replace(sample(0, 0, 0.0).verdict, reward=math.nan, status="crash")
    assert scored([replace(sample(0, 0, 0.0), verdict=crashed)], 3.0) == [crashed]
    (long,) = scored([sample(0, 0, 1.0)], math.nan)
    assert math.isnan(long.reward)
    assert (long.status, long.correct) == ("unscorable", False)
    assert "score is nan" in long.reason


def test_no_reward_model_changes_nothing(sample: Callable[..., Sample]) -> None:
    samples = [sample(0, 0, 1.0)]
    assert with_reward_model(samples, None, 1.0) == samples
