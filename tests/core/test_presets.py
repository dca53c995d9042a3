"""Presets are plain data whose every name can be looked up, and they are the papers' algorithms."""

from __future__ import annotations

import dataclasses
import inspect
from typing import get_args, get_type_hints

import pytest
import torch

from assay.config import AlgorithmSection
from assay.core.advantage import ADVANTAGES
from assay.core.kl import KLS
from assay.core.loss import LOSSES, Aggregation, Correction
from assay.core.presets import PRESETS, DeadGroups, Preset

REWARDS = torch.tensor([[1.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize("name", PRESETS)
def test_every_name_in_a_preset_exists(name: str) -> None:
    preset = PRESETS[name]
    assert preset.advantage in ADVANTAGES
    assert preset.loss in LOSSES
    assert preset.kl in KLS
    assert preset.aggregation in get_args(Aggregation)
    assert preset.kl_gradient in get_args(get_type_hints(Preset)["kl_gradient"])
    assert preset.ddof in (0, 1)
    assert 0 < preset.eps_low <= 1
    assert preset.eps_high >= preset.eps_low
    assert preset.dual_clip is None or preset.dual_clip > 1


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_cannot_be_changed(name: str) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRESETS[name].eps_low = 0.3  # type: ignore[misc]


def test_recipes_may_name_exactly_what_core_knows() -> None:
    """The recipe cannot import core, so its choices are written out there."""
    fields = get_type_hints(AlgorithmSection)
    for name, choices in (("dead_groups", DeadGroups), ("importance_correction", Correction)):
        (literal, _) = get_args(fields[name])
        assert get_args(literal) == get_args(choices)


def test_presets_are_different_algorithms() -> None:
    assert len(set(PRESETS.values())) == len(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_clipping_of_a_preset_is_taken_by_its_loss(name: str) -> None:
    preset = PRESETS[name]
    clipping = {key: getattr(preset, key) for key in ("eps_low", "eps_high", "dual_clip")}
    assert clipping.keys() <= inspect.signature(LOSSES[preset.loss].tokens).parameters.keys()
    logprobs = torch.zeros(1, 2, requires_grad=True)
    loss = LOSSES[preset.loss].tokens(logprobs, torch.zeros(1, 2), torch.ones(1, 1), **clipping)
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    assert grad.tolist() == [[-1.0, -1.0]]


def test_grpo_is_the_papers() -> None:
    """DeepSeekMath eq. 3 and 4: group mean and sigma, sequence mean, k3; sigma is the population's."""
    grpo = PRESETS["grpo"]
    assert (grpo.advantage, grpo.aggregation, grpo.kl, grpo.kl_gradient) == (
        "group_relative",
        "sequence_mean",
        "k3",
        "plain",
    )
    advantages = ADVANTAGES[grpo.advantage](REWARDS, eps=grpo.advantage_eps, ddof=grpo.ddof)
    expected = torch.tensor([[1.7320508, -0.5773503, -0.5773503, -0.5773503]], dtype=torch.float64)
    torch.testing.assert_close(advantages, expected, rtol=0, atol=5e-6)


def test_dr_grpo_has_no_sigma_and_a_fixed_length() -> None:
    dr_grpo = PRESETS["dr_grpo"]
    assert dr_grpo.aggregation == "fixed_length"
    assert ADVANTAGES[dr_grpo.advantage](REWARDS).tolist() == [[0.75, -0.25, -0.25, -0.25]]


def test_rloo_compares_each_with_the_others() -> None:
    rloo = PRESETS["rloo"]
    expected = torch.tensor([[1, -1 / 3, -1 / 3, -1 / 3]], dtype=torch.float64)
    torch.testing.assert_close(ADVANTAGES[rloo.advantage](REWARDS), expected, rtol=0, atol=1e-15)


def test_the_kl_of_tokens_has_no_place_in_the_reward_of_a_completion() -> None:
    with pytest.raises(ValueError, match="kl_in = 'loss'"):
        Preset(kl_in="reward")
