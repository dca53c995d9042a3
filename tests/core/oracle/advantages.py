"""Advantages, returns and whitening: ours for each peer's function."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from assay.core.advantage import (
    ADVANTAGES,
    batch_scaled,
    discounted_returns,
    gae,
    group_relative,
    leave_one_out,
    token_rewards,
    whiten,
)
from assay.core.masked import masked_mean, masked_var
from assay.core.presets import PRESETS, Preset
from oracle.cases import Comparator, OracleCase, Outputs


def rewards_of(case: OracleCase) -> Tensor:
    """[P, G], NaN where a group is smaller; in float32 where the peer worked in it."""
    rewards = case.inputs["rewards"]
    rewards = rewards.float() if case.dtype["adv"] == "float32" else rewards
    if rewards.ndim == 2:
        return rewards
    groups = [rewards[case.inputs["index"] == g] for g in case.inputs["index"].unique()]
    return pad_sequence(groups, batch_first=True, padding_value=torch.nan)


def shaped(case: OracleCase, advantages_PG: Tensor) -> Outputs:
    """As the peer has them: [P, G], one a completion, or on every token of it."""
    flat = advantages_PG.flatten()[~rewards_of(case).isnan().flatten()]
    theirs = case.outputs["adv"]
    if theirs.ndim == 2 and len(theirs) == len(flat):
        return {"adv": flat[:, None].expand(theirs.shape)}
    return {"adv": flat.reshape(theirs.shape)}


def group_advantages(case: OracleCase, p: Preset) -> Outputs:
    """The estimator that ``p`` names, with its epsilon, sigma and guard."""
    scale = {"eps": p.advantage_eps, "ddof": p.ddof} if p.advantage in ("group_relative", "batch_scaled") else {}
    return shaped(case, ADVANTAGES[p.advantage](rewards_of(case), guard=p.guard, **scale))


def whitened(case: OracleCase, p: Preset) -> Outputs:
    """REINFORCE++ and its variant with a baseline, as ``p`` says."""
    mask = case.inputs["mask"].bool()
    if p.estimate == "returns":
        nothing = torch.zeros(mask.shape, dtype=torch.float64)
        rewards_BT = token_rewards(rewards_of(case).flatten(), nothing, mask, 0.0)
        values_BT = discounted_returns(rewards_BT, mask, gamma=p.gamma)
    else:
        values_BT = group_advantages(case, p)["adv"]
    return {"adv": whiten(values_BT, mask, ddof=p.ddof)}


def verl_grpo(case: OracleCase) -> Outputs:
    centred = case.settings.get("norm_by_std") == "False"
    preset = PRESETS["verl_grpo"]
    return group_advantages(case, replace(preset, advantage="group_centred") if centred else preset)


def verl_rloo(case: OracleCase) -> Outputs:
    return group_advantages(case, replace(PRESETS["verl_grpo"], advantage="leave_one_out"))


def verl_reinforce(case: OracleCase) -> Outputs:
    return whitened(case, replace(PRESETS["reinforce_pp"], gamma=float(case.settings["gamma"]), ddof=1))


def verl_reinforce_baseline(case: OracleCase) -> Outputs:
    return whitened(case, replace(PRESETS["reinforce_pp_baseline"], guard=False, ddof=1))


def openrlhf_advantages(case: OracleCase) -> Outputs:
    s, peer = case.settings, PRESETS["openrlhf_grpo"]
    if s["estimator"] == "reinforce":
        return whitened(case, replace(PRESETS["reinforce_pp"], gamma=s["gamma"]))
    if s["estimator"] == "reinforce_baseline":
        return whitened(case, replace(PRESETS["reinforce_pp_baseline"], guard=False))
    names = {"group_norm": peer.advantage, "rloo": "leave_one_out", "dr_grpo": "group_centred"}
    return group_advantages(case, replace(peer, advantage=names[s["estimator"]]))


def trl_grpo(case: OracleCase) -> Outputs:
    p = PRESETS["trl_grpo"]
    if "multi_objective_aggregation" in case.settings:
        # each reward's advantages, added up and scaled over the batch as if that were one group
        each = ADVANTAGES[p.advantage](rewards_of(case), eps=p.advantage_eps, ddof=p.ddof, guard=p.guard)
        return shaped(case, group_relative(each.reshape(1, -1), eps=p.advantage_eps, ddof=p.ddof, guard=p.guard))
    names = {"group": p.advantage, "batch": "batch_scaled", "none": "group_centred"}
    return group_advantages(case, replace(p, advantage=names[case.settings["scale_rewards"]]))


def trl_rloo(case: OracleCase) -> Outputs:
    p = PRESETS["trl_grpo"]
    advantages = leave_one_out(rewards_of(case), guard=p.guard)
    if case.settings["normalize_advantages"]:
        # their mean is 0 in each group, so this divides by the sigma of the batch and no more
        advantages = batch_scaled(advantages, eps=p.advantage_eps, ddof=p.ddof, guard=p.guard)
    return shaped(case, advantages)


def gae_of(case: OracleCase) -> Outputs:
    """verl whitens what it returns; its raw advantages are in the case as well."""
    i, s = case.inputs, case.settings
    advantages, returns = gae(i["rewards"], i["values"], i["mask"], gamma=s["gamma"], lam=s["lam"])
    if case.peer == "openrlhf":
        return {"adv": advantages, "returns": returns}
    return {"adv_raw": advantages, "returns": returns, "adv_whitened": whiten(advantages, i["mask"], ddof=1)}


def verl_whiten(case: OracleCase) -> Outputs:
    i, s = case.inputs, case.settings
    mean = 0.0 if s["shift_mean"] else masked_mean(i["x"], i["mask"])
    return {"y": whiten(i["x"], i["mask"], ddof=1, eps=s["eps"]) + mean}


def verl_moments(case: OracleCase) -> Outputs:
    i = case.inputs
    return {"mean": masked_mean(i["x"], i["mask"]), "var": masked_var(i["x"], i["mask"], ddof=1)}


def openrlhf_whiten(case: OracleCase) -> Outputs:
    """Each row on its own. It bounds the variance by epsilon from below, so here epsilon does nothing."""
    rows = zip(case.inputs["x"], case.inputs["mask"], strict=True)
    return {"y": torch.stack([whiten(x[None], mask[None], eps=0.0)[0] for x, mask in rows])}


COMPARATORS: dict[str, Comparator] = {
    "core_algos.compute_grpo_outcome_advantage": verl_grpo,
    "core_algos.compute_grpo_vectorized_outcome_advantage": verl_grpo,
    "core_algos.compute_rloo_outcome_advantage": verl_rloo,
    "core_algos.compute_rloo_vectorized_outcome_advantage": verl_rloo,
    "core_algos.compute_reinforce_plus_plus_outcome_advantage": verl_reinforce,
    "core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage": verl_reinforce_baseline,
    "RemoteExperienceMaker.compute_advantages_and_returns": openrlhf_advantages,
    "GRPOTrainer._generate_and_score_completions": trl_grpo,
    "RLOOTrainer._generate_and_score_completions": trl_rloo,
    "core_algos.compute_gae_advantage_return": gae_of,
    "RemoteExperienceMaker.get_advantages_and_returns": gae_of,
    "torch_functional.masked_whiten": verl_whiten,
    "torch_functional.masked_mean/masked_var": verl_moments,
    "models.utils.masked_normalize": openrlhf_whiten,
}
