"""The learner of one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.core.loss import Denominators
from assay.core.schedule import Schedule, learning_rate
from assay.models.learner import TrainGroup, UpdateStats
from assay.models.objective import Objective, add_stats, micro_batch, objective_loss, observe
from assay.models.policy import Policy
from assay.models.scoring import micro_batches, packed_logprobs, split


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW, its schedule in optimiser steps, and gradient clipping."""

    learning_rate: float
    total_steps: int
    warmup_steps: int = 0
    schedule: Schedule = "constant"
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0


class LocalLearner:
    """Implements ``Learner`` for a policy in this process; micro-batches are bounded by packed positions."""

    def __init__(
        self, policy: Policy, objective: Objective, optimizer: OptimizerSettings, *, micro_batch_tokens: int
    ) -> None:
        self._policy = policy
        self._objective = objective
        self._micro_batch_tokens = micro_batch_tokens
        self._stepper = Stepper(policy.trainable(), optimizer)

    @property
    def weight_version(self) -> int:
        return self._stepper.steps

    @torch.no_grad()
    def logprobs(self, groups: Sequence[TrainGroup]) -> list[tuple[Tensor, ...]]:
        temperature = self._objective.temperature
        scored = []
        for group in groups:
            parts = split(group, self._micro_batch_tokens)
            scored.append(tuple(t for part in parts for t in packed_logprobs(self._policy, [part], temperature)[0]))
        return scored

    def forward_backward(
        self,
        groups: Sequence[TrainGroup],
        denominators: Denominators,
        on_micro_batch: Callable[[int, int], None] | None = None,
    ) -> UpdateStats:
        stats = UpdateStats()
        batches = micro_batches(groups, self._micro_batch_tokens)
        for i, groups_of_batch in enumerate(batches):
            if on_micro_batch is not None:
                on_micro_batch(i, len(batches))
            logprobs, entropies = packed_logprobs(self._policy, groups_of_batch, self._objective.temperature)
            batch = micro_batch(
                [s for g in groups_of_batch for s in g.samples],
                [g.group_loss_tokens for g in groups_of_batch for _ in g.samples],
                logprobs,
                entropies,
            )
            loss = objective_loss(batch, self._objective, denominators)
            loss.backward()  # type: ignore[no-untyped-call]
            stats = add_stats(stats, observe(batch, loss, self._objective))
        return stats

    def step(self) -> tuple[float, float]:
        return self._stepper.step()

    def discard_gradients(self) -> None:
        self._stepper.discard_gradients()

    def set_beta(self, beta: float) -> None:
        self._objective = replace(self._objective, beta=beta)

    def state(self) -> dict[str, Tensor]:
        return self._stepper.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        self._stepper.load_state(state)


class Stepper:
    """AdamW with its schedule and clipping over named parameters, and its state as named tensors."""

    def __init__(self, parameters: dict[str, torch.nn.Parameter], settings: OptimizerSettings) -> None:
        self._parameters = parameters
        self._settings = settings
        self.steps = 0
        self._optimizer = torch.optim.AdamW(
            parameters.values(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def step(self) -> tuple[float, float]:
        """(gradient norm before clipping, learning rate); a norm that is not finite skips the update."""
        s = self._settings
        rate = learning_rate(
            self.steps + 1,
            peak=s.learning_rate,
            warmup_steps=s.warmup_steps,
            total_steps=s.total_steps,
            schedule=s.schedule,
        )
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters.values(), s.max_grad_norm))
        if math.isfinite(norm):
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
        self.discard_gradients()
        self.steps += 1
        return norm, rate

    def discard_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        state = {"steps": torch.tensor(self.steps)}
        for name, parameter in self._parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                state[f"{key}/{name}"] = value.detach()
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.steps = int(state["steps"])
        whole = self._optimizer.state_dict()
        for i, name in enumerate(self._parameters):
            moments = {key.split("/", 1)[0]: v for key, v in state.items() if key.split("/", 1)[1:] == [name]}
            if moments:
                whole["state"][i] = moments
        self._optimizer.load_state_dict(whole)
