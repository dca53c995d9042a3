"""The reference engine: slow and obvious. Each token is one whole forward pass over one row.

It has no cache and no batch, so there is nothing in it that could go wrong quietly; the contract suite
holds every other engine against it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from assay.errors import EngineError
from assay.models.policy import Policy
from assay.rollout.engine import check_request, check_scoring_temperature
from assay.rollout.generation import Generation
from assay.rollout.sampling import sample
from assay.types import Request, Trajectory


class ReferenceEngine:
    """Samples one token of one request with each poll, with the learner's own weights."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._queue: deque[Generation] = deque()
        self.weight_version = 0

    @property
    def pending(self) -> int:
        return len(self._queue)

    def check(self, request: Request) -> None:
        check_request(request, self._policy.context_length)

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.check(request)
        self._queue.extend(Generation(r) for r in requests)

    @torch.inference_mode()
    def poll(self) -> list[Trajectory]:
        if not self._queue:
            return []
        current = self._queue[0]
        logits_1V = self._logits([*current.request.prompt_ids, *current.token_ids])[-1:]
        token, logprob = sample(logits_1V, [0], [current.request], [len(current.token_ids)])
        current.append(int(token), float(logprob))
        if not current.finished(self._policy.end_ids):
            return []
        self._queue.popleft()
        return [current.trajectory(self._policy.end_ids, self.weight_version)]

    def abort(self) -> None:
        self._queue.clear()

    def update_weights(self, version: int) -> None:
        if self._queue:
            raise EngineError(f"weights cannot change while {self.pending} requests are running")
        self.weight_version = version

    @torch.inference_mode()
    def verify(self, prompt_ids: Sequence[int], completion_ids: Sequence[int], temperature: float) -> Tensor:
        check_scoring_temperature(temperature)
        logits_TV = self._logits([*prompt_ids, *completion_ids])[len(prompt_ids) - 1 : -1] / temperature
        targets_T = torch.tensor(completion_ids, device=logits_TV.device)
        return torch.log_softmax(logits_TV, dim=-1).gather(-1, targets_T[:, None])[:, 0]

    def _logits(self, ids: list[int]) -> Tensor:
        hidden_LH = self._policy.hidden(torch.tensor([ids], device=self._policy.device))[0]
        with self._policy.autocast():
            return self._policy.head.logits(hidden_LH)
