"""The zero-variance guard: the one definition of a group without signal.

The source rule, population sigma < 1e-8 evaluated in the rewards' own precision, does not hold: eight rewards
of 0.7 have a float32 sigma of 6e-8. The rule here judges the spread in float64 against the precision that
the rewards came in.
"""

from __future__ import annotations

import torch
from torch import Tensor

ABSOLUTE_TOLERANCE = 1e-8
UNITS_IN_LAST_PLACE = 4


def is_zero_variance(rewards_PG: Tensor) -> Tensor:
    """Which groups carry no signal, as a bool tensor of shape [P].

    A group is dead when the largest minus the smallest of its rewards is at most max(1e-8, 4 units in the last
    place of its largest |reward|, in the precision that the rewards came in), so rounding such as 0.1 + 0.2
    against 0.3 is no signal while [1e6, 1e6 + 1] is. NaN marks an unscorable completion and is left out; a
    group with fewer than two scorable members is dead. Infinite rewards raise ValueError.
    """
    if rewards_PG.ndim != 2:
        raise ValueError(f"rewards_PG must have the two axes [prompts, group], got shape {tuple(rewards_PG.shape)}")
    if torch.isinf(rewards_PG).any():
        raise ValueError("rewards_PG holds an infinite reward; a verifier must return finite numbers or NaN")
    exact = rewards_PG if rewards_PG.is_floating_point() else rewards_PG.double()
    rewards = exact.double()
    scorable = ~torch.isnan(rewards)
    largest = rewards.masked_fill(~scorable, -torch.inf).amax(dim=1)
    smallest = rewards.masked_fill(~scorable, torch.inf).amin(dim=1)
    magnitude = torch.maximum(largest.abs(), smallest.abs())
    rounding = UNITS_IN_LAST_PLACE * torch.finfo(exact.dtype).eps * magnitude
    tolerance = rounding.clamp(min=ABSOLUTE_TOLERANCE)
    too_few = scorable.sum(dim=1) < 2
    return too_few | (largest - smallest <= tolerance)
