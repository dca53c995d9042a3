"""The Learner: the policy's trainable side. The loop sees this protocol and never holds a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from assay.core.loss import Denominators


@dataclass(frozen=True, slots=True)
class TrainSample:
    """One completion to train on; every per-token field has the completion's length."""

    completion_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True where the policy chose the token: only there is a loss."""
    advantage: float
    """Of the whole completion (for estimates by token: its reward)."""
    sampler_logprobs: tuple[float, ...]
    old_logprobs: Tensor | None = None
    """The learner's log-probs before the first update on this sample; None: the current ones (on-policy)."""
    ref_logprobs: Tensor | None = None
    advantages: Tensor | None = None
    """Of each token; None: ``advantage`` on every one."""
    old_values: Tensor | None = None
    """The critic's values before the first update on this sample."""
    returns: Tensor | None = None
    """What the critic's values are to become."""


@dataclass(frozen=True, slots=True)
class TrainGroup:
    """Samples of one prompt, computed together behind it."""

    prompt_ids: tuple[int, ...]
    samples: tuple[TrainSample, ...]
    group_loss_tokens: int
    """Loss tokens of the whole group, also where ``samples`` are a part of it."""
    dead: bool = False
    """Kept without signal: its advantages are 0 and stay 0."""


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What one optimiser minibatch showed. Sums are over loss tokens; None where nothing was there to see."""

    loss: float = 0.0
    tokens: int = 0
    entropy_sum: float = 0.0
    clipped: int = 0
    ratio_max_deviation: float = 0.0
    sampler_gap_sum: float = 0.0
    sampler_gap_max: float = 0.0
    kl_sum: float | None = None
    kl_min: float | None = None
    kl_linear: int = 0
    """Tokens in the linear part of k3, x > 10."""


class Learner(Protocol):
    """Computes gradients against global denominators and steps the optimiser."""

    @property
    def weight_version(self) -> int:
        """Optimiser steps taken so far."""
        ...

    def logprobs(self, groups: Sequence[TrainGroup]) -> list[tuple[Tensor, ...]]:
        """Current log-probs [T] of every completion, by group, without gradient."""
        ...

    def forward_backward(
        self,
        groups: Sequence[TrainGroup],
        denominators: Denominators,
        on_micro_batch: Callable[[int, int], None] | None = None,
    ) -> UpdateStats:
        """Add the gradient of these groups' share of the loss. May be called several times before ``step``."""
        ...

    def step(self) -> tuple[float, float]:
        """Clip, step the optimiser, clear gradients: (gradient norm before clipping, learning rate).

        A gradient that is not finite skips the update; its norm is returned as it is.
        """
        ...

    def discard_gradients(self) -> None:
        """Forget gradients that were not stepped."""
        ...

    def set_beta(self, beta: float) -> None:
        """Weight of the KL term of the loss from now on."""
        ...

    def state(self) -> dict[str, Tensor]:
        """The optimiser's state as named tensors, enough to go on exactly."""
        ...

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what ``state`` gave."""
        ...
