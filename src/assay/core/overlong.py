"""What completions that run into the length limit are worth (DAPO 2025, arXiv 2503.14476, section 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor


def overlong_penalty(lengths: Tensor, *, max_length: int, buffer: int) -> Tensor:
    """The soft overlong punishment (eq. 13), added to the reward; between -1 and 0, of the shape of ``lengths``.

    0 up to max_length - buffer tokens, then falling along a line to -1 at max_length. Raises ValueError unless
    0 < buffer <= max_length.
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"the overlong buffer must be between 1 and the length limit {max_length}, got {buffer}")
    over = lengths.to(torch.float64) - (max_length - buffer)
    return -(over / buffer).clamp(0.0, 1.0)
