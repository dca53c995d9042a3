"""What is not the peers': where we differ on purpose, and what we do not offer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import get_args

import torch
from torch import Tensor

from assay.core.advantage import ADVANTAGES
from assay.core.kl import KLS, KlGradient
from assay.core.loss import LOSSES
from assay.core.zero_variance import is_zero_variance
from oracle.advantages import rewards_of, shaped
from oracle.cases import OracleCase, Outputs
from oracle.logprobs import kl_and_gradient
from oracle.losses import loss_and_gradient, policy_weights, preset_of

Applies = Callable[[OracleCase], bool]


def nowhere(case: OracleCase) -> dict[str, Tensor]:
    return {}


@dataclass(frozen=True)
class Different:
    """A difference that is meant: our nearest function gives something else."""

    reason: str
    applies: Applies
    same: Callable[[OracleCase], dict[str, Tensor]] = nowhere
    """Where (by output) it must agree all the same."""


@dataclass(frozen=True)
class NotOffered:
    """Something that assay.core has no counterpart of: none of ours gives it."""

    reason: str
    applies: Applies
    unseen: bool = False
    """The case's numbers do not reach what we lack, so that they are the numbers of a function that we do have."""


def ids(*names: str) -> Applies:
    return lambda case: case.id in names


def function(*names: str) -> Applies:
    return lambda case: case.function in names


def alive(case: OracleCase) -> dict[str, Tensor]:
    """The groups that carry a signal."""
    living_PG = ~is_zero_variance(rewards_of(case))[:, None].expand(rewards_of(case).shape)
    return {"adv": shaped(case, living_PG)["adv"]}


def within(limit: float, of: str) -> Callable[[OracleCase], dict[str, Tensor]]:
    """Where the peer's ``of`` is less than ``limit`` in size, value and gradient."""

    def same(case: OracleCase) -> dict[str, Tensor]:
        inside = case.outputs[of].abs() < limit
        return dict.fromkeys(case.outputs, inside)

    return same


def small_rewards(case: OracleCase) -> dict[str, Tensor]:
    small_PG = (rewards_of(case).abs().amax(dim=1, keepdim=True) < 1e5).expand(rewards_of(case).shape)
    return {"adv": shaped(case, small_PG)["adv"]}


def not_alone(case: OracleCase) -> dict[str, Tensor]:
    index = case.inputs["index"]
    return {"adv": torch.bincount(index)[index] > 1}


def not_raised(case: OracleCase) -> dict[str, Tensor]:
    """Tokens whose weight is not below the lower bound."""
    log_weight = case.inputs["old_log_prob"] - case.inputs["rollout_log_prob"]
    return {"grad_log_prob": log_weight.exp() >= case.settings["threshold"][0]}


def is_trl_delta(case: OracleCase) -> bool:
    return case.function == "GRPOTrainer._compute_loss" and case.settings["delta"] is not None


def at_sequence_level(case: OracleCase) -> bool:
    return case.settings["importance_sampling_level"] == "sequence"


DIFFERENT = (
    Different(
        "float32 gives equal rewards a sigma, of rounding errors, and divides by it; ours is 0",
        ids("verl_grpo_std_float32", "verl_grpo_vectorized_float32", "verl_grpo_vectorized_float64", "trl_grpo_group"),
        same=alive,
    ),
    Different(
        "the same float32 noise, scaled once more over the whole batch, moves every advantage",
        ids("trl_grpo_normalize_then_sum"),
    ),
    Different(
        "rewards 7e-9 apart, divided by their sigma + 1e-9: the last bits of their mean show",
        ids("openrlhf_group_norm_g1.0"),
        same=alive,
    ),
    Different(
        "float32 cannot hold the mean of the others in a group of 1e6 and 1e6 + 1",
        ids("verl_rloo_float32", "trl_rloo_False_0.0", "trl_rloo_True_0.0"),
        same=small_rewards,
    ),
    Different(
        "in a group of one the advantage is the reward; ours is 0: there is nothing to compare with",
        ids("verl_grpo_ragged", "verl_rloo_ragged", "verl_grpo_vectorized_ragged"),
        same=not_alone,
    ),
    Different(
        "k1 and k2 are bounded by 10, beyond which nothing pulls back; ours go on",
        ids("openrlhf_k1_wide", "openrlhf_k2_wide"),
        same=within(10, of="kl"),
    ),
    Different(
        "the unbiased gradient is that of our importance-weighted k3, but the value reported is without the ratio",
        lambda case: bool(case.settings.get("unbiased_gradient")),
        same=lambda case: {"grad_log_prob": torch.ones_like(case.outputs["grad_log_prob"], dtype=torch.bool)},
    ),
    Different(
        "the importance weight is bounded from below as well; ours from above alone",
        ids("openrlhf_is_token_clip_ratio"),
        same=not_raised,
    ),
    Different(
        "tokens, or sequences by their mean ratio, are left out on both sides; ours: sequences by their whole ratio",
        ids("openrlhf_is_token_mask_ratio", "openrlhf_is_seq_mask_ratio"),
    ),
    Different(
        "a sequence's weight is truncated; ours leaves that sequence out",
        lambda case: case.family == "rollout_is" and case.settings.get("level") == "sequence",
    ),
    Different(
        "Liger averages LUSPO's tokens, and its KL, over padding as well; ours and TRL's do not",
        ids("liger_luspo_token_b0.0", "liger_luspo_token_b0.04", "liger_luspo_sequence_b0.04"),
    ),
)

NOT_OFFERED = (
    NotOffered(
        "SAPO's soft gates",
        lambda case: case.settings.get("loss_type") == "sapo" or case.function == "core_algos.policy_loss[sapo]",
    ),
    NotOffered("VESPO", lambda case: case.settings.get("loss_type") == "vespo"),
    NotOffered("GMPO's geometric mean of clipped ratios", function("core_algos.policy_loss[geo_mean]")),
    NotOffered("DRO's quadratic pull to the old policy", function("core_algos.policy_loss[dro]")),
    NotOffered(
        "DPPO's mask by divergence in place of the ratio",
        function("core_algos.policy_loss[dppo_tv]", "core_algos.policy_loss[dppo_kl]"),
    ),
    NotOffered(
        "TRL's delta, a bound on the ratio itself (it is not dual clip)",
        lambda case: is_trl_delta(case) and not at_sequence_level(case),
    ),
    NotOffered(
        "TRL's delta; no sequence of the cases has a ratio above it",
        lambda case: is_trl_delta(case) and at_sequence_level(case),
        unseen=True,
    ),
    NotOffered(
        "importance gates by total variation and binary KL",
        ids("openrlhf_is_seq_mask_binary_kl", "openrlhf_is_token_mask_tv"),
    ),
    NotOffered("OPO's baseline weighted by length", function("core_algos.compute_opo_outcome_advantage")),
    NotOffered("pass@k advantages", function("core_algos.compute_grpo_passk_outcome_advantage")),
    NotOffered("ReMax's baseline of a greedy completion", function("core_algos.compute_remax_outcome_advantage")),
    NotOffered("|log ratio| as a KL estimator", lambda case: case.settings.get("kl") == "abs"),
    NotOffered(
        "perplexities and chi-squares of the sampler against the learner",
        function("rollout_corr_helper.compute_offpolicy_metrics"),
    ),
)


def anything_of_ours(case: OracleCase) -> Iterator[Outputs]:
    """All that assay.core can make of the inputs of a case that it has no counterpart of."""
    if case.family == "policy_loss":
        yield from _losses(case)
    elif case.family == "advantages":
        given = {"returns": case.outputs["returns"]} if "returns" in case.outputs else {}
        for name, guard in product(ADVANTAGES, (False, True)):
            yield shaped(case, ADVANTAGES[name](rewards_of(case), guard=guard)) | given
    elif case.family == "kl":
        for kind, gradient in product(KLS, get_args(KlGradient)):
            yield kl_and_gradient(case, kind, gradient)


def _losses(case: OracleCase) -> Iterator[Outputs]:
    modes = ("token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
    for mode, name, level in product(modes, LOSSES, ("token", "sequence")):
        preset = replace(preset_of(case), loss=name, importance_level=level, dual_clip=None)
        yield loss_and_gradient(case, preset, policy_weights(case, mode), beta=case.settings.get("beta", 0.0))
