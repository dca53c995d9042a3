"""Learning-rate schedules: by hand at the ends, and in between only downwards."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest

from assay.core.schedule import Schedule, learning_rate

SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


def rates(schedule: Schedule, warmup: int, total: int) -> list[float]:
    return [
        learning_rate(step, peak=2.0, warmup_steps=warmup, total_steps=total, schedule=schedule)
        for step in range(1, total + 1)
    ]


def test_worked_numbers() -> None:
    assert rates("constant", 0, 3) == [2, 2, 2]
    assert rates("constant", 4, 6) == [0.5, 1, 1.5, 2, 2, 2]
    assert rates("linear", 2, 5) == pytest.approx([1, 2, 1.5, 1, 0.5])
    assert rates("linear", 0, 3) == pytest.approx([1.5, 1, 0.5])
    assert rates("cosine", 0, 3) == pytest.approx([1 + 0.5**0.5, 1, 1 - 0.5**0.5])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (1, 1), (0, 50), (5, 50), (50, 50), (60, 50)])
def test_up_to_the_peak_and_then_never_up_but_never_to_zero(schedule: Schedule, warmup: int, total: int) -> None:
    curve = rates(schedule, warmup, total)
    assert all(0 < rate <= 2 for rate in curve)
    assert all(a < b for a, b in pairwise(curve[:warmup]))
    assert all(a >= b for a, b in pairwise(curve[max(warmup - 1, 0) :]))
    if warmup and warmup <= total:
        assert curve[warmup - 1] == 2


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_falls_to_zero_just_after_the_last_step_and_stays_there(schedule: Schedule) -> None:
    for step in (11, 12, 1000):
        rate = learning_rate(step, peak=2.0, warmup_steps=3, total_steps=10, schedule=schedule)
        assert rate == pytest.approx(0, abs=1e-12)
