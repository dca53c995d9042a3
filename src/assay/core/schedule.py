"""Learning-rate schedules as plain arithmetic on step numbers."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(step: int, *, peak: float, warmup_steps: int, total_steps: int, schedule: Schedule) -> float:
    """The rate of optimiser step ``step`` (counted from 1).

    Linear from peak / warmup_steps up to ``peak`` at step ``warmup_steps``; afterwards constant, or falling to 0
    at ``total_steps`` + 1 along a line or half a cosine, so that the last step still moves.
    """
    if step <= warmup_steps:
        return peak * step / warmup_steps
    if schedule == "constant":
        return peak
    progress = (step - warmup_steps) / max(total_steps - warmup_steps + 1, 1)
    progress = min(max(progress, 0.0), 1.0)
    return peak * ((1 - progress) if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2)
