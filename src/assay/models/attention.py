"""Our attention, registered with transformers' attention interface: a layout says who attends to whom.

Models are used as transformers ships them; nothing of their forward is written again. A layout is handed to
the model's forward as the keyword ``layout`` and reaches every attention layer unchanged.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION = "assay"

UNSUPPORTED = ("sliding_window", "softcap", "s_aux")
"""What some architectures ask of their attention, and ours would silently leave out."""


class Layout(Protocol):
    """Decides, for the packed tokens of one forward pass, which keys each query sees."""

    def attend(self, layer: int, query_HND: Tensor, key_KND: Tensor, value_KND: Tensor, scaling: float) -> Tensor:
        """Attention outputs [heads, N, D] of one layer, for keys and values with K (fewer) heads."""
        ...


def folded_bias(allowed_BTS: Tensor, share: int, dtype: torch.dtype) -> Tensor:
    """What ``attend_folded`` adds to the scores of ``share`` query heads to a key head: 0 where allowed, else -inf."""
    bias = torch.zeros(allowed_BTS.shape, dtype=dtype, device=allowed_BTS.device)
    return bias.masked_fill_(~allowed_BTS, -torch.inf).repeat(1, share, 1)[:, None]


def attend_folded(
    query_BHTD: Tensor, key_BKSD: Tensor, value_BKSD: Tensor, bias_B1MS: Tensor, scaling: float
) -> Tensor:
    """Attention with grouped queries folded into the time axis (M = H / K * T), so that keys are never repeated.

    Returns [B, H, T, D].
    """
    B, H, T, D = query_BHTD.shape
    share = H // key_BKSD.shape[1]
    folded = query_BHTD.reshape(B, H // share, share * T, D)
    out = scaled_dot_product_attention(folded, key_BKSD, value_BKSD, attn_mask=bias_B1MS, scale=scaling)
    return out.reshape(B, H, T, D)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    layout: Layout | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer; without a layout, every row is plain causal and unpadded."""
    if attention_mask is not None:
        raise ValueError("the assay attention takes no mask: rows are packed or unpadded")
    if changed := [name for name in UNSUPPORTED if others.get(name) is not None]:
        raise ValueError(f"this architecture asks its attention for {', '.join(changed)}, which is not supported yet")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if layout is None:
        grouped = query.shape[1] != key.shape[1]
        out = scaled_dot_product_attention(
            query, key, value, is_causal=query.shape[2] > 1, scale=scale, enable_gqa=grouped
        )
    else:
        out = layout.attend(int(module.layer_idx), query[0], key[0], value[0], scale).unsqueeze(0)  # type: ignore[arg-type]
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, _attention)
