"""How much a critic knows: pure comparisons of its values with what was earned."""

from __future__ import annotations

from torch import Tensor

from assay.core.masked import masked_var
from assay.core.zero_variance import is_zero_variance


def explained_variance(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> float | None:
    """1 - Var(R - V) / Var(R) over the masked-in tokens; None where all returns are equal.

    1 for a critic that knows every return, 0 for one that says the same everywhere, negative for one that misleads.
    """
    mask = mask_BT.bool()
    if not mask.any() or is_zero_variance(returns_BT[mask][None])[0]:
        return None
    residual = masked_var(returns_BT - values_BT, mask) / masked_var(returns_BT, mask)
    return 1.0 - float(residual)


def first_half(mask_BT: Tensor) -> Tensor:
    """The mask of the first half of each row's own tokens, the middle one included."""
    own = mask_BT.bool().long()
    return (own.cumsum(dim=1) <= (own.sum(dim=1, keepdim=True) + 1) // 2) & own.bool()
