"""The critic of PPO: a value for each token of a completion, and the learner that fits it.

The value of a token is read where the token is predicted: what the policy had before it chose. The head starts
at 0, so a fresh critic says the same everywhere: 0, or what ``start_at`` gives.

Deviation from a head on a shared, trained trunk (Schulman et al. 2017, arXiv 1707.06347, eq. 9): with
``backbone = "actor"`` the head reads the policy's states and sends no gradient into them, so that the policy's
update is the policy loss's alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from assay.core.loss import Denominators, aggregate, sequence_weights, value_loss
from assay.core.masked import masked_sum
from assay.models.learner import TrainGroup, TrainSample
from assay.models.local_learner import OptimizerSettings, Stepper
from assay.models.policy import Policy
from assay.models.scoring import micro_batches, packed_states, split

WEIGHT = "weight/"


class Critic:
    """Values by a linear head on a backbone's states: a copy of the policy that trains, or the policy as it is."""

    def __init__(
        self,
        policy: Policy,
        optimizer: OptimizerSettings,
        *,
        own_backbone: bool,
        value_clip: float | None,
        micro_batch_tokens: int,
    ) -> None:
        self._own = own_backbone
        self._backbone = _trainable_copy(policy) if own_backbone else policy
        self._head = torch.nn.Linear(policy.config.hidden_size, 1, device=policy.device)
        torch.nn.init.zeros_(self._head.weight)
        torch.nn.init.zeros_(self._head.bias)
        self._value_clip = value_clip
        self._micro_batch_tokens = micro_batch_tokens
        backbone = self._backbone.trainable() if own_backbone else {}
        self._parameters = {**backbone, **{f"value_head.{name}": p for name, p in self._head.named_parameters()}}
        self._stepper = Stepper(self._parameters, optimizer)

    @property
    def updates(self) -> int:
        """Optimiser steps taken so far."""
        return self._stepper.steps

    @torch.no_grad()
    def start_at(self, earned: Sequence[float]) -> None:
        """Say the mean of ``earned`` everywhere, for a critic that has not learnt anything yet."""
        if earned:
            self._head.bias.fill_(sum(earned) / len(earned))

    @torch.no_grad()
    def values(self, groups: Sequence[TrainGroup]) -> list[tuple[Tensor, ...]]:
        """Current values [T] of every completion, by group, in reward."""
        return [
            tuple(v for part in split(group, self._micro_batch_tokens) for v in self._values([part]))
            for group in groups
        ]

    def forward_backward(
        self,
        groups: Sequence[TrainGroup],
        denominators: Denominators,
        on_micro_batch: Callable[[int, int], None] | None = None,
    ) -> float:
        """Add the gradient of the mean over all tokens of ``value_loss``; returns these groups' share of that mean.

        The samples carry ``old_values`` and ``returns``.
        """
        total = 0.0
        batches = micro_batches(groups, self._micro_batch_tokens)
        for i, part in enumerate(batches):
            if on_micro_batch is not None:
                on_micro_batch(i, len(batches))
            samples = [s for g in part for s in g.samples]
            loss = self._loss(samples, self._values(part), denominators)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return total

    def step(self) -> tuple[float, float]:
        """(gradient norm before clipping, learning rate); a norm that is not finite skips the update."""
        return self._stepper.step()

    def discard_gradients(self) -> None:
        self._stepper.discard_gradients()

    def state(self) -> dict[str, Tensor]:
        """Weights and optimiser state as named tensors, enough to go on exactly."""
        weights = {f"{WEIGHT}{name}": p.detach() for name, p in self._parameters.items()}
        return {**weights, **self._stepper.state()}

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what ``state`` gave."""
        for name, parameter in self._parameters.items():
            parameter.copy_(state[f"{WEIGHT}{name}"])
        self._stepper.load_state({k: v for k, v in state.items() if not k.startswith(WEIGHT)})

    def _values(self, groups: Sequence[TrainGroup]) -> list[Tensor]:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self._own):
            states = packed_states(self._backbone, groups)
        values_N = self._head(torch.cat(states).float())[:, 0]
        return list(torch.split(values_N, [len(hidden_TH) for hidden_TH in states]))

    def _loss(self, samples: Sequence[TrainSample], values: Sequence[Tensor], denominators: Denominators) -> Tensor:
        values_BT = pad_sequence(list(values), batch_first=True)

        def dense(rows: Sequence[Tensor | None]) -> Tensor:
            given = [row for row in rows if row is not None]
            if len(given) != len(samples):
                raise ValueError(f"{len(given)} of {len(samples)} samples carry values and returns; all must")
            return pad_sequence([row.to(given[0].device) for row in given], batch_first=True).to(values_BT)

        mask_BT = dense([torch.tensor(s.mask) for s in samples]).bool()
        loss_BT = value_loss(
            values_BT,
            dense([s.old_values for s in samples]),
            dense([s.returns for s in samples]),
            clip=self._value_clip,
        )
        lengths_B = masked_sum(mask_BT.long(), mask_BT, dim=1)
        return aggregate(loss_BT, mask_BT, sequence_weights("token_mean", lengths_B, lengths_B, denominators))


def _trainable_copy(policy: Policy) -> Policy:
    """A copy with the same parameters training, but for an untied output head, which no value needs."""
    module = copy.deepcopy(policy.module)
    copied = Policy(module, policy.tokenizer, policy.device, policy.precision)
    if not policy.config.tie_word_embeddings:
        copied.head.weight_VH.requires_grad_(False)
    return copied
