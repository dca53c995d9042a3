"""Which prompts a step trains on: pure functions of the step number, so a resume needs no state."""

from __future__ import annotations

import numpy as np


def draw_uniform(rows: int, prompts: int, step: int, seed: int) -> list[int]:
    """Indices of the ``prompts`` rows of step ``step`` (counted from 1): every row once an epoch, shuffled.

    Epochs follow one another without a gap, also inside a step.
    """
    first = (step - 1) * prompts
    orders: dict[int, np.ndarray] = {}
    drawn = []
    for position in range(first, first + prompts):
        epoch, place = divmod(position, rows)
        if epoch not in orders:
            orders[epoch] = np.random.Generator(
                np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64))
            ).permutation(rows)
        drawn.append(int(orders[epoch][place]))
    return drawn
