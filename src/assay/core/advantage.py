"""Advantage estimators.

GRPO (DeepSeekMath 2024, arXiv 2402.03300, eq. 4) leaves the kind of sigma open; ours is the population sigma
(``ddof=0``), so that |advantage| <= sqrt(G - 1) whatever the rewards. Deviation from the paper: groups
without signal (``is_zero_variance``) get advantages of exactly 0, and NaN rewards (unscorable completions)
are left out of mean and sigma and get advantage 0. ``guard=False`` switches the first off, for presets that
reproduce a peer; a group of one scorable member is 0 even then.

A dense [P, G] may hold groups of uneven size: NaN pads them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from assay.core.masked import masked_mean, masked_var
from assay.core.zero_variance import is_zero_variance


def group_relative(rewards_PG: Tensor, *, eps: float = 1e-6, ddof: int = 0, guard: bool = True) -> Tensor:
    """(r - mean) / (sigma + eps) within each group of G completions; float64 of shape [P, G].

    Raises ValueError for ``ddof`` other than 0 or 1 and for a negative ``eps``.
    """
    _check_scale(eps, ddof)
    centred, scorable = _centred(rewards_PG)
    sigma = masked_var(centred, scorable, dim=1, ddof=ddof).sqrt().unsqueeze(1)
    return _guarded(centred / (sigma + eps), rewards_PG, guard)


def batch_scaled(rewards_PG: Tensor, *, eps: float = 1e-6, ddof: int = 0, guard: bool = True) -> Tensor:
    """(r - group mean) / (sigma of all rewards of the batch + eps); float64 of shape [P, G].

    One scale for all prompts (Lite PPO 2025, arXiv 2508.08221; TRL's ``scale_rewards="batch"``). Raises ValueError
    as ``group_relative`` does.
    """
    _check_scale(eps, ddof)
    centred, scorable = _centred(rewards_PG)
    sigma = masked_var(rewards_PG.double(), scorable, ddof=ddof).sqrt()
    return _guarded(centred / (sigma + eps), rewards_PG, guard)


def group_centred(rewards_PG: Tensor, *, guard: bool = True) -> Tensor:
    """r - mean within each group (Dr.GRPO 2025, arXiv 2503.20783: no sigma); float64 of shape [P, G]."""
    centred, _ = _centred(rewards_PG)
    return _guarded(centred, rewards_PG, guard)


def leave_one_out(rewards_PG: Tensor, *, guard: bool = True) -> Tensor:
    """r minus the mean of the group's other rewards (RLOO, Ahmadian et al. 2024, arXiv 2402.14740, eq. 8).

    Equal to (r - mean) * n / (n - 1) over the n scorable members; float64 of shape [P, G].
    """
    centred, scorable = _centred(rewards_PG)
    n = scorable.sum(dim=1, keepdim=True)
    return _guarded(centred * n / (n - 1), rewards_PG, guard)


def token_rewards(scores_B: Tensor, kl_BT: Tensor, mask_BT: Tensor, beta: float) -> Tensor:
    """-beta KL on every own token, and the score on the last one (InstructGPT, arXiv 2203.02155, eq. 2); [B, T].

    A row without own tokens has no rewards.
    """
    mask = mask_BT.bool()
    positions_T = torch.arange(mask.shape[1], device=mask.device)
    last_B1 = torch.where(mask, positions_T, -1).amax(dim=1, keepdim=True)
    scores_BT = torch.where(positions_T == last_B1, scores_B[:, None].to(kl_BT), 0.0)
    return scores_BT - torch.where(mask, beta * kl_BT, 0.0)


def discounted_returns(rewards_BT: Tensor, mask_BT: Tensor, *, gamma: float) -> Tensor:
    """G_t = r_t + gamma G_next over each row's own tokens; 0 at masked positions, whose rewards are not read."""
    mask = mask_BT.bool()
    following_B = rewards_BT.new_zeros(rewards_BT.shape[0])
    returns_BT = torch.zeros_like(rewards_BT)
    for t in reversed(range(rewards_BT.shape[1])):
        returns_B = torch.where(mask[:, t], rewards_BT[:, t] + gamma * following_B, 0.0)
        returns_BT[:, t] = returns_B
        following_B = torch.where(mask[:, t], returns_B, following_B)
    return returns_BT


def whiten(values_BT: Tensor, mask_BT: Tensor, *, ddof: int = 0, eps: float = 1e-8) -> Tensor:
    """(x - mean) / sqrt(var + eps) over all own tokens of the batch; 0 at masked positions.

    Where the variance is rounding alone (all values equal) the result is exactly 0.
    """
    mask = mask_BT.bool()
    if not mask.any():
        return torch.zeros_like(values_BT)
    centred = torch.where(mask, values_BT - masked_mean(values_BT, mask), 0.0)
    if is_zero_variance(values_BT[mask][None])[0]:
        return torch.zeros_like(values_BT)
    return centred / (masked_var(values_BT, mask, ddof=ddof) + eps).sqrt()


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


def _check_scale(eps: float, ddof: int) -> None:
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 (population) or 1 (sample), got {ddof}")
    if eps < 0:
        raise ValueError(f"eps must not be negative, got {eps}")


def _guarded(advantages_PG: Tensor, rewards_PG: Tensor, guard: bool) -> Tensor:
    """Exactly 0 for unscorable members, for groups with fewer than two scorable ones and, guarded, without signal."""
    scorable = ~torch.isnan(rewards_PG)
    dead_P = is_zero_variance(rewards_PG) if guard else scorable.sum(dim=1) < 2
    return torch.where(scorable & ~dead_P.unsqueeze(1), advantages_PG, 0.0)


ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    "group_relative": group_relative,
    "group_centred": group_centred,
    "leave_one_out": leave_one_out,
    "batch_scaled": batch_scaled,
}
"""Estimators with the group's mean as baseline: rewards [P, G] to advantages [P, G]; settings as keywords."""
