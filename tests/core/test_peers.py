"""Losses, whitening and corrections against the peers' own numbers: value and gradient, to 1e-10 in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.core.advantage import (
    ADVANTAGES,
    batch_scaled,
    discounted_returns,
    group_centred,
    leave_one_out,
    token_rewards,
    whiten,
)
from assay.core.kl import adapted_beta, k3_clamped, k3_unbounded, kl_term
from assay.core.loss import (
    LOSSES,
    Aggregation,
    Denominators,
    aggregate,
    cispo,
    clipped_surrogate,
    correction_weights,
    sequence_level,
    sequence_weights,
    value_loss,
)
from assay.core.masked import masked_mean
from assay.core.presets import PRESETS

Cases = Callable[..., list[Any]]
VERL: dict[str, Aggregation] = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum-norm": "fixed_length",
}
TRL: dict[str, Aggregation] = {
    "grpo": "sequence_mean",
    "bnpo": "token_mean",
    "dapo": "token_mean",
    "dr_grpo": "fixed_length",
    "cispo": "token_mean",
}


def weights_of(mask: Tensor, aggregation: Aggregation, max_length: int, added: float) -> Tensor:
    """``added`` is what verl and OpenRLHF add to a sequence's token count."""
    lengths = mask.double().sum(dim=1)
    d = Denominators(int((lengths > 0).sum()), int(lengths.sum()), 1, max_length)
    return sequence_weights(aggregation, lengths + added * (lengths > 0), lengths, d)


def check(case: Any, loss: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], weights_B: Tensor) -> None:
    i = case.inputs
    logprobs = i["log_prob"].clone().requires_grad_()
    total = aggregate(loss(logprobs, i["old_log_prob"], i["advantages"], i["mask"]), i["mask"], weights_B)
    (grad,) = torch.autograd.grad(total, logprobs)
    assert grad.abs().max() > 1e-5, case.id
    for ours, theirs in ((total.detach(), case.outputs["loss"]), (grad, case.outputs["grad_log_prob"])):
        worst = (ours - theirs).abs().max().item()
        assert worst <= 1e-10, f"{case.id}: off by {worst}"


def gspo(low: float, high: float) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    def loss(logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        return clipped_surrogate(sequence_level(logprobs, old, mask), old, advantages, eps_low=low, eps_high=high)

    return loss


def clipped_weight(low: float, high: float) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    return lambda logprobs, old, advantages, _: cispo(logprobs, old, advantages, eps_low=low, eps_high=high)


@pytest.mark.parametrize(("name", "loss", "count"), [("gspo", gspo, 12), ("cispo", clipped_weight, 24)])
def test_verl(oracle_cases: Cases, name: str, loss: Callable[..., Any], count: int) -> None:
    cases = oracle_cases("policy_loss", function=f"core_algos.policy_loss[{name}]")
    cases = [c for c in cases if c.settings["loss_agg_mode"] in VERL]
    assert len(cases) == count
    for case in cases:
        s = case.settings
        aggregation = VERL[s["loss_agg_mode"]]
        added = 1e-8 if aggregation == "sequence_mean" else 0.0
        weights = weights_of(case.inputs["mask"], aggregation, case.inputs["mask"].shape[1], added)
        check(case, loss(s["clip_ratio_low"], s["clip_ratio_high"]), weights)


def test_trl_and_liger_sequence_level_and_cispo(oracle_cases: Cases) -> None:
    cases = [c for peer in ("trl", "liger-kernel") for c in oracle_cases("policy_loss", peer=peer, beta=0.0)]
    checked = 0
    for case in cases:
        s = case.settings
        level = s.get("importance_sampling_level", s.get("level"))
        if s["loss_type"] not in TRL or s.get("delta") is not None:
            continue
        if s["loss_type"] == "cispo" and level == "token":
            # their epsilon_high is the bound itself
            loss = clipped_weight(1.0, s["eps_high"] - 1)
        elif level == "sequence" and s["loss_type"] != "cispo":
            loss = gspo(s["eps_low"], s["eps_high"])
        else:
            continue
        check(case, loss, weights_of(case.inputs["mask"], TRL[s["loss_type"]], s["max_completion_length"], 0.0))
        checked += 1
    assert checked >= 10


def test_value_loss(oracle_cases: Cases) -> None:
    checked = 0
    for case in oracle_cases("value_loss"):
        i, s = case.inputs, case.settings
        mode = s.get("mode", "token-mean" if s.get("token_level") else "seq-mean-token-mean")
        if mode not in VERL:
            continue
        values = i["vpreds"].clone().requires_grad_()
        tokens = value_loss(values, i["values"], i["returns"], clip=s.get("cliprange_value", s.get("clip_eps")))
        added = 1e-8 if mode == "seq-mean-token-mean" else 0.0
        loss = aggregate(tokens, i["mask"], weights_of(i["mask"], VERL[mode], i["mask"].shape[1], added))
        (grad,) = torch.autograd.grad(loss, values)
        assert (loss - case.outputs["loss"]).abs().item() <= 1e-10, case.id
        assert (grad - case.outputs["grad_vpreds"]).abs().max().item() <= 1e-10, case.id
        checked += 1
    assert checked == 12


def test_truncated_importance_weights(oracle_cases: Cases) -> None:
    cases = oracle_cases("rollout_is", level="token")
    assert len(cases) == 2
    for case in cases:
        i = case.inputs
        weights = correction_weights(
            i["old_log_prob"], i["rollout_log_prob"], i["mask"], kind="tis", cap=case.settings["threshold"]
        )
        gap = torch.where(i["mask"].bool(), weights - case.outputs["weights"], 0.0)
        assert gap.abs().max().item() <= 1e-10, case.id


def test_masked_sequences() -> None:
    """[0.5, 0.5] sums to log w = 1 (e > 2: out), [0.5, -1] to less than 0 (in); masked tokens do not count."""
    gap = torch.tensor([[0.5, 0.5, 9.0], [0.5, -1.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    assert correction_weights(gap, torch.zeros_like(gap), mask, kind="mis", cap=2.0).tolist() == [[0.0] * 3, [1.0] * 3]


def test_whitening_of_verl(oracle_cases: Cases) -> None:
    cases = oracle_cases("gae", function="torch_functional.masked_whiten", shift_mean=True)
    assert len(cases) == 2
    for case in cases:
        mask = case.inputs["mask"].bool()
        ours = whiten(case.inputs["x"], mask, ddof=1)
        # verl adds 1e-8 to the number of tokens in its means
        assert (ours - case.outputs["y"])[mask].abs().max().item() <= 1e-9, case.id


def test_whitening_of_equal_values_is_exactly_zero() -> None:
    mask = torch.tensor([[1, 1, 0]])
    for value in (0.1 + 0.2, 0.7, 1e6):
        assert whiten(torch.full((1, 3), value), mask).tolist() == [[0.0, 0.0, 0.0]]


NAMES = {1.0: "1", 0.99: "099"}


@pytest.mark.parametrize("gamma", NAMES)
def test_reinforce_plus_plus_of_verl(oracle_cases: Cases, gamma: float) -> None:
    name = "core_algos.compute_reinforce_plus_plus_outcome_advantage"
    (case,) = oracle_cases("advantages", function=name, gamma=str(gamma), id=f"verl_rfpp_gamma{NAMES[gamma]}_float64")
    mask = case.inputs["mask"].bool()
    zeros = torch.zeros(mask.shape, dtype=torch.float64)
    rewards = token_rewards(case.inputs["rewards"].flatten(), zeros, mask, 0.0)
    ours = whiten(discounted_returns(rewards, mask, gamma=gamma), mask, ddof=1)
    # verl adds 1e-8 to the number of tokens in its means
    assert (ours - case.outputs["adv"])[mask].abs().max().item() <= 1e-9


def test_reinforce_plus_plus_baseline_of_verl(oracle_cases: Cases) -> None:
    (case,) = oracle_cases("advantages", id="verl_rfpp_baseline_float64")
    mask = case.inputs["mask"].bool()
    centred = group_centred(case.inputs["rewards"], guard=False).flatten()[:, None].expand(mask.shape)
    ours = whiten(centred, mask, ddof=1)
    # verl adds 1e-8 to the number of tokens in its means
    assert (ours - case.outputs["adv"])[mask].abs().max().item() <= 1e-9


def test_batch_scale_of_trl(oracle_cases: Cases) -> None:
    (case,) = oracle_cases("advantages", id="trl_grpo_batch")
    ours = batch_scaled(case.inputs["rewards"].float(), eps=1e-4, ddof=1, guard=False)
    torch.testing.assert_close(ours.float(), case.outputs["adv"].reshape(ours.shape), rtol=1e-5, atol=1e-6)


def test_k3_of_the_peers_far_from_the_reference(oracle_cases: Cases) -> None:
    for name, estimator in (("verl_k3_wide", k3_clamped), ("liger_k3_wide", k3_unbounded)):
        (case,) = oracle_cases("kl", id=name)
        logprobs = case.inputs["log_prob"].clone().requires_grad_()
        value = estimator(logprobs, case.inputs["ref_log_prob"])
        (grad,) = torch.autograd.grad(value.sum(), logprobs)
        torch.testing.assert_close(value.detach(), case.outputs["kl"], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(grad, case.outputs["grad_log_prob"], rtol=1e-10, atol=1e-10)


def test_straight_through_has_the_value_of_one_and_the_gradient_of_k2(oracle_cases: Cases) -> None:
    (case,) = oracle_cases("kl", id="verl_k3+_near")
    logprobs = case.inputs["log_prob"].clone().requires_grad_()
    value = kl_term("k3", "straight_through", logprobs, case.inputs["ref_log_prob"], torch.ones_like(logprobs))
    (grad,) = torch.autograd.grad(value.sum(), logprobs)
    torch.testing.assert_close(value.detach(), case.outputs["kl"], rtol=0, atol=1e-10)
    torch.testing.assert_close(grad, case.outputs["grad_log_prob"], rtol=0, atol=1e-10)


def test_adaptive_kl_controller_of_verl(oracle_cases: Cases) -> None:
    (case,) = oracle_cases("kl", function="core_algos.AdaptiveKLController")
    beta, values = 0.2, []
    for kl in (3, 6, 12, 30, 0.1):
        beta = adapted_beta(beta, kl, target=6.0, horizon=10000, samples=512)
        values.append(beta)
    torch.testing.assert_close(torch.tensor(values, dtype=torch.float64), case.outputs["values"], rtol=0, atol=1e-12)


def test_kl_in_the_reward_of_openrlhf(oracle_cases: Cases) -> None:
    (case,) = oracle_cases("kl", id="openrlhf_reward_with_kl")
    i = case.inputs
    ours = token_rewards(i["reward"], i["kl"], i["mask"], 0.05)
    gap = torch.where(i["mask"].bool(), ours - case.outputs["token_rewards"], 0.0)
    assert gap.abs().max().item() <= 1e-10


@pytest.mark.parametrize(
    ("preset", "advantages", "dtype", "loss"),
    [
        ("verl_grpo", "verl_grpo_std_float64", torch.float64, "verl_vanilla_dual3_token-mean_tail"),
        ("openrlhf_grpo", "openrlhf_group_norm_g1.0", torch.float64, "openrlhf_ppo_0.2_0.2_None_token"),
        ("trl_grpo", "trl_grpo_group", torch.float32, "trl_dapo_token_b0.04_0.2_0.2_None"),
    ],
)
def test_a_peers_preset_is_the_peer(
    oracle_cases: Cases, preset: str, advantages: str, dtype: torch.dtype, loss: str
) -> None:
    """Advantages with the groups that our guard would call dead, and loss with gradient, all through the preset."""
    p = PRESETS[preset]
    (case,) = oracle_cases("advantages", id=advantages)
    ours = ADVANTAGES[p.advantage](case.inputs["rewards"].to(dtype), eps=p.advantage_eps, ddof=p.ddof, guard=p.guard)
    theirs = case.outputs["adv"]
    theirs = theirs if theirs.shape == ours.shape else theirs[:, 0].reshape(ours.shape)
    ordinary = case.inputs["rewards"].std(dim=1) > 1e-3  # elsewhere it is a ratio of rounding errors
    limit = 1e-10 if dtype == torch.float64 else 1e-5
    assert ((ours - theirs.double()).abs().amax(dim=1) <= limit)[ordinary].all()
    assert int(ordinary.sum()) >= 5

    (case,) = oracle_cases("policy_loss", id=loss)
    beta = case.settings.get("beta", 0.0)

    def through_the_preset(logprobs: Tensor, old: Tensor, given: Tensor, _: Tensor) -> Tensor:
        tokens = LOSSES[p.loss].tokens(
            logprobs, old, given, eps_low=p.eps_low, eps_high=p.eps_high, dual_clip=p.dual_clip
        )
        if not beta:
            return tokens
        kl = kl_term(p.kl, p.kl_gradient, logprobs, case.inputs["ref_log_prob"], torch.exp(logprobs - old))
        return tokens + beta * kl

    check(case, through_the_preset, weights_of(case.inputs["mask"], p.aggregation, 1, 0.0))


def test_leave_one_out_needs_no_guard() -> None:
    rewards = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    assert leave_one_out(rewards, guard=False).tolist() == [[0.0, 0.0]]
    assert masked_mean(leave_one_out(rewards), torch.ones(1, 2)).item() == 0.0
