"""beta, the weight of the KL to the reference: constant, or steered to a target after each step."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from assay.config import AlgorithmSection
from assay.core.kl import adapted_beta
from assay.models.learner import UpdateStats


class KlWeight:
    """What beta is now. Only a steered one is state of the run: the other is in the recipe."""

    def __init__(self, algorithm: AlgorithmSection) -> None:
        self.beta = algorithm.beta
        self._target = algorithm.kl_target
        self._horizon = algorithm.kl_horizon

    def observe(self, stats: UpdateStats, samples: int) -> None:
        """Steer by the step's mean k3 over ``samples`` completions. Where nothing was seen it stays."""
        if self._target is not None and stats.kl_sum is not None and stats.tokens:
            kl = stats.kl_sum / stats.tokens
            if not math.isfinite(kl):
                return
            self.beta = adapted_beta(self.beta, kl, target=self._target, horizon=self._horizon, samples=samples)

    def state(self) -> dict[str, Tensor]:
        return {} if self._target is None else {"kl_beta": torch.tensor(self.beta, dtype=torch.float64)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        if self._target is not None:
            self.beta = float(state["kl_beta"])
