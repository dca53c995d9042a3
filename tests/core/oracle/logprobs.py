"""KL estimators and what is made of them, log-probs and entropies: ours for each peer's function."""

from __future__ import annotations

import torch

from assay.core.advantage import token_rewards
from assay.core.kl import KlGradient, adapted_beta, k1, kl_term
from assay.core.logprob import token_logprobs
from assay.core.presets import PRESETS
from oracle.cases import Comparator, OracleCase, Outputs

KL_PRESETS = {"verl": "verl_grpo", "openrlhf": "openrlhf_grpo", "liger-kernel": "trl_grpo"}


def kl_and_gradient(case: OracleCase, kind: str, gradient: KlGradient) -> Outputs:
    i = case.inputs
    logprobs = i["log_prob"].clone().requires_grad_()
    ratio = torch.exp(logprobs - i.get("old_log_prob", i["log_prob"]))
    value = kl_term(kind, gradient, logprobs, i["ref_log_prob"], ratio)
    (grad,) = torch.autograd.grad(value.sum(), logprobs)
    return {"kl": value.detach(), "grad_log_prob": grad}


def estimator(case: OracleCase) -> Outputs:
    """k1 and k2 as they are, k3 as the peer's preset bounds it; verl's + is our straight-through.

    OpenRLHF's unbiased gradient is, for every estimator, that of the importance-weighted k3.
    """
    name = case.settings.get("kl", "k3")
    unbiased = case.settings.get("unbiased_gradient", False)
    kind = PRESETS[KL_PRESETS[case.peer]].kl if unbiased or name.startswith("k3") else name.rstrip("+")
    gradient: KlGradient = "straight_through" if name.endswith("+") else "plain"
    return kl_and_gradient(case, kind, "importance" if unbiased else gradient)


def openrlhf_reward(case: OracleCase) -> Outputs:
    i = case.inputs
    return {"token_rewards": token_rewards(i["reward"], i["kl"], i["mask"], case.settings["kl_coef"])}


def verl_reward(case: OracleCase) -> Outputs:
    """verl charges the KL on every position, also after the last token, which holds the score."""
    scores_BT = case.inputs["scores"]
    kl_BT = k1(case.inputs["old_log_prob"], case.inputs["ref_log_prob"])
    last_B1 = scores_BT.ne(0).int().argmax(dim=1, keepdim=True)
    own_BT = torch.arange(scores_BT.shape[1]) <= last_B1
    scored_BT = token_rewards(scores_BT.sum(dim=1), kl_BT, own_BT, 0.0)
    everywhere_BT = torch.ones_like(own_BT)
    charged_BT = token_rewards(torch.zeros(len(kl_BT)), kl_BT, everywhere_BT, case.settings["kl_ratio"])
    return {"token_rewards": scored_BT + charged_BT}


def controller(case: OracleCase) -> Outputs:
    s = case.settings
    betas = [s["init"]]
    for kl in s["currents"]:
        betas.append(adapted_beta(betas[-1], kl, target=s["target"], horizon=s["horizon"], samples=s["n_steps"]))
    return {"values": torch.tensor(betas[1:], dtype=torch.float64)}


def of_given_logits(case: OracleCase) -> Outputs:
    """An identity head turns the logits that verl and TRL take into ours."""
    logits = case.inputs["logits"]
    shape, V = logits.shape[:-1], logits.shape[-1]
    ids = case.inputs.get("ids", torch.zeros(shape, dtype=torch.long))
    logprobs, entropies = token_logprobs(logits.flatten(0, 1), torch.eye(V, dtype=logits.dtype), ids.flatten(), chunk=7)
    ours = {"log_prob": logprobs.reshape(shape), "entropy": entropies.reshape(shape)}
    return {name: ours[name] for name in case.outputs}


COMPARATORS: dict[str, Comparator] = {
    "core_algos.kl_penalty": estimator,
    "models.utils.compute_approx_kl": estimator,
    "grpo_loss.k3_loss_fn": estimator,
    "models.utils.compute_reward": openrlhf_reward,
    "core_algos.compute_rewards": verl_reward,
    "core_algos.AdaptiveKLController": controller,
    "torch_functional.entropy_from_logits": of_given_logits,
    "torch_functional.logprobs_from_logits_naive": of_given_logits,
    "trainer.utils.selective_log_softmax": of_given_logits,
}
