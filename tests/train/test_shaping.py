"""The soft overlong penalty comes off the reward and is shown."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from assay.train.shaping import with_overlong_penalty
from assay.types import Sample


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
