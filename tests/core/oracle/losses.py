"""Policy and value losses, their aggregation, importance weights, and the fused head: ours for each peer's function."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from assay.core.kl import kl_term
from assay.core.logprob import token_logprobs
from assay.core.loss import (
    LOSSES,
    Aggregation,
    Denominators,
    aggregate,
    correction_weights,
    sequence_level,
    sequence_weights,
    value_loss,
)
from assay.core.presets import PRESETS, Preset
from oracle.cases import Comparator, OracleCase, Outputs

MODES: dict[str, tuple[Aggregation, dict[str, int]]] = {
    "token-mean": ("token_mean", {}),
    "token-sum": ("token_mean", {"tokens": 1}),
    "seq-mean-token-mean": ("sequence_mean", {}),
    "seq-mean-token-sum": ("fixed_length", {"max_length": 1}),
    "seq-mean-token-sum-norm": ("fixed_length", {}),
    "grpo": ("sequence_mean", {}),
    "bnpo": ("token_mean", {}),
    "dapo": ("token_mean", {}),
    "cispo": ("token_mean", {}),
    "dr_grpo": ("fixed_length", {}),
    "luspo": ("fixed_length", {"max_length": 1}),
}
"""verl's and TRL's names as ours. A plain sum over tokens is a mean with a count of one."""

LENGTH_EPS = 1e-8
"""What verl and OpenRLHF add to the token count of each sequence."""


def weights_of(mode: str, mask: Tensor, length_eps: float = 0.0, **counts: int) -> Tensor:
    """Weights of a whole batch; peers count only the sequences that have loss tokens."""
    aggregation, fixed = MODES[mode]
    lengths = mask.double().sum(dim=1)
    counted = {"sequences": int((lengths > 0).sum()), "tokens": int(lengths.sum()), "max_length": mask.shape[1]}
    denominators = Denominators(prompts=1, **{**counted, **counts, **fixed})
    return sequence_weights(aggregation, lengths + length_eps * (lengths > 0), lengths, denominators)


def loss_and_gradient(
    case: OracleCase, p: Preset, weights_B: Tensor, beta: float = 0.0, correction_BT: Tensor | None = None
) -> Outputs:
    """The loss as ``p`` says, and its gradient with respect to the log-probs."""
    i = case.inputs
    logprobs, old = i["log_prob"].clone().requires_grad_(), i["old_log_prob"]
    scored = sequence_level(logprobs, old, i["mask"]) if p.importance_level == "sequence" else logprobs
    tokens = LOSSES[p.loss].tokens(
        scored, old, i["advantages"], eps_low=p.eps_low, eps_high=p.eps_high, dual_clip=p.dual_clip
    )
    if correction_BT is not None:
        tokens = tokens * correction_BT
    if beta:
        tokens = tokens + beta * kl_term(p.kl, p.kl_gradient, logprobs, i["ref_log_prob"], torch.exp(logprobs - old))
    loss = aggregate(tokens, i["mask"], weights_B)
    (grad,) = torch.autograd.grad(loss, logprobs)
    return {"loss": loss.detach(), "grad_log_prob": grad}


def preset_of(case: OracleCase) -> Preset:
    """The peer's preset, with what the case sets otherwise."""
    s = case.settings
    if case.peer == "verl":
        kind = case.function.split("[")[1].rstrip("]")
        return replace(
            PRESETS["verl_grpo"],
            loss="cispo" if kind in ("cispo", "gpg") else "clipped_surrogate",
            importance_level="sequence" if kind == "gspo" else "token",
            eps_low=s["clip_ratio_low"],
            eps_high=s["clip_ratio_high"],
            dual_clip=None if kind in ("gspo", "cispo", "gpg") else s["clip_ratio_c"],
        )
    if case.peer == "openrlhf":
        return replace(
            PRESETS["openrlhf_grpo"],
            importance_level="sequence" if s.get("type") == "gspo" else "token",
            eps_low=s.get("low", 0.2),
            eps_high=s.get("high", 0.2),
            dual_clip=s.get("dual_clip"),
        )
    cispo = s["loss_type"] == "cispo"
    return replace(
        PRESETS["trl_grpo"],
        loss="cispo" if cispo else "clipped_surrogate",
        importance_level=s.get("importance_sampling_level", s.get("level")),
        # TRL's and Liger's cispo has no lower bound, and its epsilon_high is the upper bound itself
        eps_low=1.0 if cispo else s["eps_low"],
        eps_high=s["eps_high"] - 1 if cispo else s["eps_high"],
    )


def mode_of(case: OracleCase) -> str:
    """The aggregation of a policy loss, where it has one of ours."""
    s = case.settings
    if "loss_type" in s:
        return s["loss_type"] if s["loss_type"] in MODES else "grpo"
    return s.get("loss_agg_mode") or ("token-mean" if s.get("token_level", True) else "seq-mean-token-mean")


def policy_weights(case: OracleCase, mode: str) -> Tensor:
    mask = case.inputs["mask"]
    length_eps = LENGTH_EPS if case.peer in ("verl", "openrlhf") else 0.0
    return weights_of(mode, mask, length_eps, max_length=case.settings.get("max_completion_length", mask.shape[1]))


def policy_loss(case: OracleCase) -> Outputs:
    weights = policy_weights(case, mode_of(case))
    return loss_and_gradient(case, preset_of(case), weights, beta=case.settings.get("beta", 0.0))


def verl_gpg(case: OracleCase) -> Outputs:
    """-A logp: cispo where the old policy is the current one, as in a run with one update a rollout."""
    on_policy = replace(case, inputs={**case.inputs, "old_log_prob": case.inputs["log_prob"]})
    return policy_loss(on_policy)


def openrlhf_policy_loss(case: OracleCase) -> Outputs:
    i, s = case.inputs, case.settings
    if "is_correction_level" not in s:
        return policy_loss(case)
    # the nearest that we have: its upper bound is our cap, of tokens where it clips, else of sequences
    kind: Any = "tis" if s["mode"] == "clip" else "mis"
    cap = s["threshold"][1]
    correction = correction_weights(i["old_log_prob"], i["rollout_log_prob"], i["mask"], kind=kind, cap=cap)
    return loss_and_gradient(case, preset_of(case), policy_weights(case, mode_of(case)), correction_BT=correction)


def verl_aggregation(case: OracleCase) -> Outputs:
    """verl multiplies by dp_size against the averaging over ranks, which is the learner's business here."""
    s = case.settings
    given = {"global_batch_size": "sequences", "batch_num_tokens": "tokens", "loss_scale_factor": "max_length"}
    counts = {ours: s[theirs] for theirs, ours in given.items() if theirs in s}
    weights = weights_of(s["mode"], case.inputs["mask"], LENGTH_EPS, **counts)
    return {"loss": aggregate(case.inputs["loss"], case.inputs["mask"], weights) * s.get("dp_size", 1)}


def openrlhf_aggregation(case: OracleCase) -> Outputs:
    mode = "token-mean" if case.settings["token_level_loss"] else "seq-mean-token-mean"
    weights = weights_of(mode, case.inputs["mask"], LENGTH_EPS)
    return {"loss": aggregate(case.inputs["loss"], case.inputs["mask"], weights)}


def critic_loss(case: OracleCase) -> Outputs:
    i, s = case.inputs, case.settings
    mode = s.get("mode") or ("token-mean" if s["token_level"] else "seq-mean-token-mean")
    values = i["vpreds"].clone().requires_grad_()
    tokens = value_loss(values, i["values"], i["returns"], clip=s.get("cliprange_value", s.get("clip_eps")))
    loss = aggregate(tokens, i["mask"], weights_of(mode, i["mask"], LENGTH_EPS))
    (grad,) = torch.autograd.grad(loss, values)
    return {"loss": loss.detach(), "grad_vpreds": grad}


def rollout_weights(case: OracleCase) -> Outputs:
    """Of a sequence verl gives min(w, cap); our nearest leaves out the sequences that it would cap."""
    i, s = case.inputs, case.settings
    kind: Any = "tis" if s["level"] == "token" else "mis"
    weights = correction_weights(i["old_log_prob"], i["rollout_log_prob"], i["mask"], kind=kind, cap=s["threshold"])
    return {"weights": weights}


def fused_linear(case: OracleCase) -> Outputs:
    """Hidden states to loss, and to the gradients of hidden states and head."""
    i, s, p = case.inputs, case.settings, PRESETS["trl_grpo"]
    hidden, head = i["hidden"].clone().requires_grad_(), i["weight"].clone().requires_grad_()
    logprobs, _ = token_logprobs(hidden.flatten(0, 1), head, i["ids"].flatten(), chunk=5)
    logprobs = logprobs.reshape(i["ids"].shape)
    ratio = torch.exp(logprobs - i["old_log_prob"])
    tokens = LOSSES[p.loss].tokens(
        logprobs, i["old_log_prob"], i["advantages"], eps_low=p.eps_low, eps_high=p.eps_high, dual_clip=p.dual_clip
    )
    tokens = tokens + s["beta"] * kl_term(p.kl, p.kl_gradient, logprobs, i["ref_log_prob"], ratio)
    loss = aggregate(tokens, i["mask"], weights_of(s["loss_type"], i["mask"], max_length=100))
    grad_hidden, grad_head = torch.autograd.grad(loss, (hidden, head))
    return {"loss": loss.detach(), "grad_hidden": grad_hidden, "grad_weight": grad_head}


COMPARATORS: dict[str, Comparator] = {
    "core_algos.policy_loss[vanilla]": policy_loss,
    "core_algos.policy_loss[gspo]": policy_loss,
    "core_algos.policy_loss[cispo]": policy_loss,
    "core_algos.policy_loss[gpg]": verl_gpg,
    "models.loss.PolicyLoss": openrlhf_policy_loss,
    "GRPOTrainer._compute_loss": policy_loss,
    "LigerFusedLinearGRPOFunction.ppo_loss_fn": policy_loss,
    "core_algos.agg_loss": verl_aggregation,
    "models.loss.aggregate_loss": openrlhf_aggregation,
    "core_algos.compute_value_loss": critic_loss,
    "models.loss.ValueLoss": critic_loss,
    "rollout_corr_helper.compute_rollout_correction_weights": rollout_weights,
    "LigerFusedLinearGRPOLoss": fused_linear,
}
