"""Advantage estimators.

GRPO (DeepSeekMath 2024, arXiv 2402.03300, eq. 4) leaves the kind of sigma open; ours is the population sigma
(``ddof=0``), so that |advantage| <= sqrt(G - 1) whatever the rewards. Deviation from the paper: groups
without signal (``is_zero_variance``) get advantages of exactly 0, and NaN rewards (unscorable completions)
are left out of mean and sigma and get advantage 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from assay.core.masked import masked_mean, masked_var
from assay.core.zero_variance import is_zero_variance


def group_relative(rewards_PG: Tensor, *, eps: float = 1e-6, ddof: int = 0) -> Tensor:
    """(r - mean) / (sigma + eps) within each group of G completions; float64 of shape [P, G].

    Raises ValueError for ``ddof`` other than 0 or 1 and for a negative ``eps``.
    """
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 (population) or 1 (sample), got {ddof}")
    if eps < 0:
        raise ValueError(f"eps must not be negative, got {eps}")
    centred, scorable = _centred(rewards_PG)
    sigma = masked_var(centred, scorable, dim=1, ddof=ddof).sqrt().unsqueeze(1)
    return _guarded(centred / (sigma + eps), rewards_PG)


def group_centred(rewards_PG: Tensor) -> Tensor:
    """r - mean within each group (Dr.GRPO 2025, arXiv 2503.20783: no sigma); float64 of shape [P, G]."""
    centred, _ = _centred(rewards_PG)
    return _guarded(centred, rewards_PG)


def leave_one_out(rewards_PG: Tensor) -> Tensor:
    """r minus the mean of the group's other rewards (RLOO, Ahmadian et al. 2024, arXiv 2402.14740, eq. 8).

    Equal to (r - mean) * n / (n - 1) over the n scorable members; float64 of shape [P, G].
    """
    centred, scorable = _centred(rewards_PG)
    n = scorable.sum(dim=1, keepdim=True)
    return _guarded(centred * n / (n - 1), rewards_PG)


def gae(
    rewards_BT: Tensor,
    values_BT: Tensor,
    mask_BT: Tensor,
    *,
    gamma: float,
    lam: float,
    bootstrap_B: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation (Schulman et al. 2015, arXiv 1506.02438, eq. 16): (advantages, returns).

    delta_t = r_t + gamma V_next - V_t and A_t = delta_t + gamma lam A_next over each row's own tokens; masked
    positions are stepped over and never read, and are 0 in the result. After the last own token the value is
    ``bootstrap_B`` (default 0: the completion has finished). returns = advantages + values.
    """
    mask = mask_BT.bool()
    values = torch.where(mask, values_BT, 0.0)
    rewards = torch.where(mask, rewards_BT, 0.0)
    next_value = values.new_zeros(values.shape[0]) if bootstrap_B is None else bootstrap_B.to(values)
    next_advantage = torch.zeros_like(next_value)
    advantages = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        advantages[:, t] = torch.where(mask[:, t], advantage, 0.0)
        next_advantage = torch.where(mask[:, t], advantage, next_advantage)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
    return advantages, torch.where(mask, advantages + values, 0.0)


def _centred(rewards_PG: Tensor) -> tuple[Tensor, Tensor]:
    """Rewards minus their group's mean over scorable members, in float64, and the scorable mask."""
    rewards = rewards_PG.double()
    scorable = ~torch.isnan(rewards)
    mean = masked_mean(rewards, scorable, dim=1).unsqueeze(1)
    return rewards - mean, scorable


def _guarded(advantages_PG: Tensor, rewards_PG: Tensor) -> Tensor:
    """Exactly 0 for groups without signal and for unscorable members."""
    alive = ~is_zero_variance(rewards_PG).unsqueeze(1) & ~torch.isnan(rewards_PG)
    return torch.where(alive, advantages_PG, 0.0)


ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    "group_relative": group_relative,
    "group_centred": group_centred,
    "leave_one_out": leave_one_out,
}
"""Group-baseline estimators: rewards [P, G] to advantages [P, G]."""
