"""Named algorithms as plain data: which functions of core, with which constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from assay.core.loss import Aggregation


@dataclass(frozen=True, slots=True)
class Preset:
    """Everything that tells one group-baseline algorithm from another."""

    advantage: str = "group_relative"
    """A name in ADVANTAGES."""
    advantage_eps: float = 1e-6
    """Added to sigma (group_relative alone)."""
    ddof: int = 0
    """0 population sigma, 1 sample sigma (group_relative alone)."""
    loss: str = "clipped_surrogate"
    """A name in LOSSES."""
    eps_low: float = 0.2
    eps_high: float = 0.2
    dual_clip: float | None = None
    aggregation: Aggregation = "sequence_mean"
    kl: str = "k3"
    """A name in KLS; used when beta > 0."""
    kl_gradient: Literal["plain", "importance"] = "plain"
    """plain: the paper's; importance: times the ratio, the gradient of KL(pi || pi_ref) per token."""


PRESETS: dict[str, Preset] = {
    "grpo": Preset(),
    "dr_grpo": Preset(advantage="group_centred", aggregation="fixed_length"),
    "rloo": Preset(advantage="leave_one_out", aggregation="token_mean"),
}
