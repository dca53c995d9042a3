"""beta is steered to its target, and the steered beta is part of a checkpoint."""

from __future__ import annotations

import math

import pytest

from assay.config import AlgorithmSection
from assay.models.learner import UpdateStats
from assay.train.kl_weight import KlWeight


def steered() -> KlWeight:
    return KlWeight(AlgorithmSection(beta=0.1, kl_target=0.5, kl_horizon=100))


def seen(kl: float) -> UpdateStats:
    return UpdateStats(tokens=4, kl_sum=4 * kl)


@pytest.mark.parametrize(("kl", "expected"), [(0.5, 0.1), (0.55, 0.101), (50.0, 0.102), (0.0, 0.098)])
def test_beta_moves_towards_the_target(kl: float, expected: float) -> None:
    """10 completions of a horizon of 100: a tenth of the relative error, which counts up to a fifth."""
    weight = steered()
    weight.observe(seen(kl), 10)
    assert weight.beta == pytest.approx(expected)


def test_many_samples_over_a_short_horizon_never_turn_its_sign() -> None:
    for kl, factor in ((0.0, 0.8), (50.0, 1.2)):
        weight = KlWeight(AlgorithmSection(beta=0.1, kl_target=0.5, kl_horizon=1))
        weight.observe(seen(kl), 1000)
        assert weight.beta == pytest.approx(0.1 * factor)


def test_a_kl_that_is_no_number_leaves_it_alone() -> None:
    weight = steered()
    weight.observe(seen(math.nan), 10)
    assert weight.beta == 0.1


def test_without_a_target_or_without_anything_seen_it_stays() -> None:
    constant, weight = KlWeight(AlgorithmSection(beta=0.1)), steered()
    constant.observe(seen(50.0), 10)
    weight.observe(UpdateStats(), 10)
    assert constant.beta == weight.beta == 0.1
    assert constant.state() == {}


def test_a_checkpoint_brings_it_back_exactly() -> None:
    weight, again = steered(), steered()
    weight.observe(seen(0.7), 10)
    again.load_state(weight.state())
    assert again.beta == weight.beta != 0.1
