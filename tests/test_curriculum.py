"""Uniform drawing: every row once an epoch, and the step number is all the state there is."""

from __future__ import annotations

from collections import Counter

import pytest

from assay.curriculum import draw_uniform


@pytest.mark.parametrize(("rows", "prompts"), [(10, 5), (10, 3), (7, 7), (5, 12), (1, 4), (64, 1)])
def test_every_row_comes_once_an_epoch(rows: int, prompts: int) -> None:
    drawn = [i for step in range(1, 61) for i in draw_uniform(rows, prompts, step, seed=3)]
    assert len(drawn) == 60 * prompts
    for start in range(0, len(drawn) - rows + 1, rows):
        assert sorted(drawn[start : start + rows]) == list(range(rows))


def test_more_prompts_than_rows_repeat_each_as_often_as_must_be() -> None:
    assert Counter(draw_uniform(5, 12, 1, seed=0)).most_common()[0][1] == 3
    assert min(Counter(draw_uniform(5, 12, 1, seed=0)).values()) == 2


def test_a_step_depends_on_its_number_and_the_seed_alone() -> None:
    forwards = [draw_uniform(100, 8, step, seed=1) for step in range(1, 40)]
    backwards = [draw_uniform(100, 8, step, seed=1) for step in range(39, 0, -1)]
    assert forwards == backwards[::-1]


def test_the_order_is_shuffled_anew_in_every_epoch_and_for_every_seed() -> None:
    epochs = [tuple(draw_uniform(50, 50, step, seed)) for step in (1, 2, 3) for seed in (0, 1, 2**63 - 1)]
    assert len(set(epochs)) == 9
    assert tuple(range(50)) not in epochs


def test_the_draws_of_a_seed_never_change() -> None:
    # Fixed, since a run must be able to go on under a later version.
    assert draw_uniform(8, 4, 1, seed=0) == [5, 0, 6, 1]
    assert draw_uniform(8, 4, 3, seed=7) == [1, 7, 4, 0]


def test_large_seeds_are_different_seeds() -> None:
    """Resampling adds 2**62 to the run's seed; from 2**63 on a float64 would hold only every 2048th."""
    orders = {tuple(draw_uniform(50, 50, 1, 2**63 + offset)) for offset in range(5)}
    assert len(orders) == 5
