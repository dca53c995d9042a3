"""The only reductions over masked tensors. A masked-out value is never read, not even to multiply it by 0."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum of ``values`` where ``mask`` is true; NaN and infinity elsewhere do not count. 0 over nothing."""
    kept = torch.where(mask.bool(), values, torch.zeros((), dtype=values.dtype, device=values.device))
    return kept.sum() if dim is None else kept.sum(dim=dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of ``values`` where ``mask`` is true; NaN over nothing, since a mean of nothing is not 0."""
    count = mask.bool().sum() if dim is None else mask.bool().sum(dim=dim)
    return masked_sum(values, mask, dim) / count


def masked_var(values: Tensor, mask: Tensor, dim: int | None = None, *, ddof: int = 0) -> Tensor:
    """Variance where ``mask`` is true, two-pass; divisor count - ``ddof`` (0 or 1), NaN where that is not positive."""
    mean = masked_mean(values, mask, dim)
    centred = values - (mean if dim is None else mean.unsqueeze(dim))
    count = mask.bool().sum() if dim is None else mask.bool().sum(dim=dim)
    return masked_sum(centred.square(), mask, dim) / (count - ddof).clamp(min=0)
