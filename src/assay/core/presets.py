"""Named algorithms as plain data: which functions of core, with which constants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from assay.core.kl import KlGradient
from assay.core.loss import Aggregation

Estimate = Literal["group", "returns", "critic"]
DeadGroups = Literal["drop", "keep_kl", "resample", "keep_in_denominator"]


@dataclass(frozen=True, slots=True)
class Preset:
    """Everything that tells one algorithm from another. The defaults are the GRPO paper's."""

    estimate: Estimate = "group"
    """group: one advantage a completion, against its group. returns: discounted rewards from each token on, no
    baseline but the batch. critic: GAE against a learnt value of each token."""
    advantage: str = "group_relative"
    """A name in ADVANTAGES (group alone)."""
    advantage_eps: float = 1e-6
    """Added to sigma (group_relative and batch_scaled)."""
    ddof: int = 0
    """0 population sigma, 1 sample sigma, also of whitening."""
    guard: bool = True
    """Advantages of groups without signal are exactly 0. Off only to reproduce a peer."""
    whiten: bool = False
    """Advantages less their mean, by their sigma, over all tokens of the batch that are trained on."""
    gamma: float = 1.0
    """Discount of one token (returns and critic)."""
    lam: float = 0.95
    """lambda of GAE (critic alone): 1 is the whole return less the value, 0 one step alone."""
    value_clip: float | None = None
    """How far a value may move from the one before the update (critic alone)."""
    loss: str = "clipped_surrogate"
    """A name in LOSSES."""
    importance_level: Literal["token", "sequence"] = "token"
    """One ratio a token, or one a sequence (GSPO)."""
    eps_low: float = 0.2
    eps_high: float = 0.2
    dual_clip: float | None = None
    aggregation: Aggregation = "sequence_mean"
    kl: str = "k3"
    """A name in KLS; used when beta > 0."""
    kl_in: Literal["loss", "reward"] = "loss"
    """reward: -beta KL on every token's reward (returns and critic)."""
    kl_gradient: KlGradient = "plain"
    """plain: the paper's; importance and straight_through: see core.kl (in the loss alone)."""
    dead_groups: DeadGroups = "drop"
    overlong_share: float = 0.0
    """The part of the length limit in which the soft overlong penalty falls to -1; 0: no penalty."""

    def __post_init__(self) -> None:
        if self.estimate == "group" and self.kl_in == "reward":
            raise ValueError(
                "with estimate 'group' the KL of single tokens cannot be in the reward of a completion: kl_in = 'loss'"
            )


GRPO_PEER = Preset(ddof=1, guard=False, aggregation="token_mean", dead_groups="keep_in_denominator")
"""What the peers' GRPO have in common. They differ in epsilons, clipping and the bound on k3."""

PRESETS: dict[str, Preset] = {
    "grpo": Preset(),
    "dr_grpo": Preset(advantage="group_centred", aggregation="fixed_length"),
    "dapo": Preset(eps_high=0.28, aggregation="token_mean", dead_groups="resample", overlong_share=0.2),
    "rloo": Preset(advantage="leave_one_out", aggregation="token_mean"),
    "ppo": Preset(estimate="critic", value_clip=0.2, whiten=True, aggregation="token_mean", kl="k1", kl_in="reward"),
    "reinforce_pp": Preset(estimate="returns", whiten=True, aggregation="token_mean", kl="k1", kl_in="reward"),
    "reinforce_pp_baseline": Preset(advantage="group_centred", whiten=True, aggregation="token_mean", kl="k2"),
    "gspo": Preset(importance_level="sequence", eps_low=3e-4, eps_high=4e-4),
    "cispo": Preset(loss="cispo", eps_low=1.0, eps_high=4.0, aggregation="token_mean"),
    "trl_grpo": replace(GRPO_PEER, advantage_eps=1e-4, kl="k3_unbounded"),
    "verl_grpo": replace(GRPO_PEER, advantage_eps=1e-6, dual_clip=3.0, kl="k3_clamped"),
    "openrlhf_grpo": replace(GRPO_PEER, advantage_eps=1e-9, kl="k3_clamped"),
}
