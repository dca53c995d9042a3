"""Advantages of tokens: rewards with KL to go, whitened over the batch."""

from __future__ import annotations

import pytest
import torch

from assay.core.presets import PRESETS, Preset
from assay.models.learner import TrainGroup, TrainSample
from assay.train.token_advantages import with_token_advantages


def group(*rewards: float, dead: bool = False, mask: tuple[bool, ...] = (True, True)) -> TrainGroup:
    length = len(mask)
    samples = tuple(
        TrainSample(
            (5,) * length,
            mask,
            reward,
            (-1.0,) * length,
            old_logprobs=torch.full((length,), -1.0),
            ref_logprobs=torch.full((length,), -1.5),
        )
        for reward in rewards
    )
    return TrainGroup((7,), samples, sum(mask) * len(rewards), dead)


def advantages(groups: list[TrainGroup]) -> list[list[float]]:
    return [s.advantages.tolist() for g in groups for s in g.samples if s.advantages is not None]


def test_an_estimate_by_group_stays_one_number_a_completion() -> None:
    groups = [group(1.0, -1.0)]
    assert with_token_advantages(groups, PRESETS["grpo"], 0.0) == groups


def test_the_kl_of_later_tokens_counts_in_earlier_ones() -> None:
    """k1 is .5 on each token; beta .1: [2 - .05 - .05, 2 - .05], and an observation in the middle has none."""
    plain = Preset(estimate="returns", kl="k1", kl_in="reward")
    (row,) = advantages(with_token_advantages([group(2.0)], plain, 0.1))
    assert row == pytest.approx([1.9, 1.95])
    (row,) = advantages(with_token_advantages([group(2.0, mask=(True, False, True))], plain, 0.1))
    assert row == pytest.approx([1.9, 0.0, 1.95])
    half = Preset(estimate="returns", gamma=0.5)
    assert advantages(with_token_advantages([group(2.0)], half, 0.0)) == [[1.0, 2.0]]


def test_whitening_is_over_the_tokens_of_the_whole_batch() -> None:
    """Rewards 1 on two tokens, 0 on one: mean 2/3, sigma sqrt(2)/3."""
    groups = [group(1.0), group(0.0, mask=(True,))]
    first, second = advantages(with_token_advantages(groups, PRESETS["reinforce_pp"], 0.0))
    assert first == pytest.approx([2**-0.5, 2**-0.5], abs=1e-6)
    assert second == pytest.approx([-(2**0.5)], abs=1e-6)


def test_a_dead_group_that_is_kept_has_no_signal_after_whitening_either() -> None:
    groups = [group(2.0, -1.0, -1.0), group(0.0, 0.0, 0.0, dead=True)]
    whitened = with_token_advantages(groups, PRESETS["reinforce_pp_baseline"], 0.0)
    assert advantages(whitened[1:]) == [[0.0, 0.0]] * 3
    assert advantages(whitened[:1]) == advantages(
        with_token_advantages(groups[:1], PRESETS["reinforce_pp_baseline"], 0)
    )


def test_what_is_missing_is_named() -> None:
    (bare,) = [TrainSample((5,), (True,), 1.0, (-1.0,))]
    with pytest.raises(ValueError, match="1 of 1 samples lack what advantages are made of"):
        with_token_advantages([TrainGroup((7,), (bare,), 1)], PRESETS["reinforce_pp"], 0.1)
    assert with_token_advantages([], PRESETS["reinforce_pp"], 0.1) == []
