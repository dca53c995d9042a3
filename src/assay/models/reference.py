"""The frozen reference of the KL term: a second copy of the weights or, with LoRA, the adapters switched off."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain, islice

import torch
from torch import Tensor

from assay.models.learner import TrainGroup
from assay.models.policy import Policy
from assay.models.scoring import micro_batches, packed_logprobs


class Reference:
    """Log-probs of the policy as it was when this was made."""

    def __init__(self, policy: Policy) -> None:
        self._adapters_off = policy.is_lora
        self._policy = policy if policy.is_lora else _frozen_copy(policy)

    @torch.no_grad()
    def logprobs(self, groups: Sequence[TrainGroup], temperature: float, max_tokens: int) -> list[tuple[Tensor, ...]]:
        """Reference log-probs [T] of every completion, by group."""
        if self._adapters_off:
            with self._policy.adapters_off():
                return self._score(groups, temperature, max_tokens)
        return self._score(groups, temperature, max_tokens)

    def _score(self, groups: Sequence[TrainGroup], temperature: float, max_tokens: int) -> list[tuple[Tensor, ...]]:
        batches = micro_batches(groups, max_tokens)
        logprobs = chain.from_iterable(packed_logprobs(self._policy, batch, temperature)[0] for batch in batches)
        return [tuple(islice(logprobs, len(group.samples))) for group in groups]


def _frozen_copy(policy: Policy) -> Policy:
    module = copy.deepcopy(policy.module).requires_grad_(False)
    return Policy(module, policy.tokenizer, policy.device, policy.precision)
