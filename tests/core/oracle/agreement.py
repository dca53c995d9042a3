"""How far ours is from a peer's, in units of what is allowed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from oracle import advantages, logprobs, losses
from oracle.cases import Comparator, OracleCase, Outputs

COMPARATORS: dict[str, Comparator] = {**losses.COMPARATORS, **advantages.COMPARATORS, **logprobs.COMPARATORS}
"""By the peer's function."""

METRICS = frozenset({"clipfrac", "frac_reward_zero_std", "n"})
"""Outputs that are neither a value nor a gradient; tests of their own compare them."""

FLOAT32_INSIDE = {
    "verl_grpo_vectorized_float64": "the vectorised function works in float32",
    "verl_grpo_vectorized_ragged": "the vectorised function works in float32",
    "verl_rloo_vectorized_float64": "the vectorised function works in float32",
    "openrlhf_reinforce_baseline_g1.0": "the sums of the batch are float32",
    "openrlhf_reinforce_g1.0": "the sums of the batch are float32",
    "openrlhf_reinforce_g0.99": "the sums of the batch are float32",
}
"""Cases whose outputs are float64 while what made them is not."""

COUNT_EPS = frozenset(
    {
        "torch_functional.masked_whiten",
        "torch_functional.masked_mean/masked_var",
        "core_algos.compute_reinforce_plus_plus_outcome_advantage",
        "core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage",
    }
)
"""Where verl adds 1e-8 to the number of tokens in a mean."""


def tolerance(case: OracleCase, output: str) -> float:
    if "float32" in case.dtype.values() or case.id in FLOAT32_INSIDE:
        return 1e-6
    return 1e-9 if case.function in COUNT_EPS or output == "adv_whitened" else 1e-10


def own_tokens(case: OracleCase, output: str) -> Tensor | None:
    """Where an output means something: a loss has no gradient at masked positions, the rest is not defined there."""
    mask = case.inputs.get("mask")
    if case.family in ("policy_loss", "value_loss") or mask is None or mask.shape != case.outputs[output].shape:
        return None
    return mask.bool()


def excess(case: OracleCase, ours: Outputs, where: Mapping[str, Tensor] | None = None) -> float:
    """The largest |ours - theirs| over all outputs as a multiple of what is allowed; above 1 they disagree.

    Allowed is the tolerance times the number itself or, if that is more, times the smaller of 1 and the largest
    number of the output. ``where`` leaves all but some positions of some outputs out.
    """
    if ours.keys() != case.outputs.keys() - METRICS:
        raise AssertionError(f"{case.id}: compares {sorted(ours)} of {sorted(case.outputs)}")
    kept = {} if where is None else where
    names = ours if where is None else where
    return max((_excess(case, name, ours[name], kept.get(name)) for name in names), default=0.0)


def _excess(case: OracleCase, name: str, ours: Tensor, where: Tensor | None) -> float:
    theirs = case.outputs[name].double()
    if ours.shape != theirs.shape:
        raise AssertionError(f"{case.id}: {name} has shape {tuple(ours.shape)}, theirs {tuple(theirs.shape)}")
    defined = own_tokens(case, name)
    kept = torch.ones_like(theirs, dtype=torch.bool) if defined is None else defined
    floor = theirs[kept].abs().max().clamp(max=1.0)
    kept = kept if where is None else kept & where
    allowed = tolerance(case, name) * torch.maximum(theirs.abs(), floor)
    gap = (ours - theirs).abs()
    ratio = torch.where(gap == 0, 0.0, gap / allowed).nan_to_num(nan=torch.inf)
    return float(ratio[kept].max()) if kept.any() else 0.0
