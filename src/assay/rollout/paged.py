"""The embedded engine: prompts computed once for all their completions, rows that leave as they finish.

Keys and values lie in one piece for each prompt and each lane; they are not cut into pages yet.

It uses the learner's own modules and weights: there is no copy, so nothing to synchronise, and sampler and
learner agree to the last digits. Requests run in waves bounded by rows and memory. What prompts have in
common at their start (a system line, worked examples) is computed once for the whole wave, and so is what
completions of one prompt have in common.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import compress

import torch
from torch import Tensor

from assay.errors import EngineError
from assay.models.packing import pack
from assay.models.policy import Policy
from assay.rollout.engine import check_request, check_scoring_temperature
from assay.rollout.generation import Generation
from assay.rollout.kv_cache import KVCache, RecordingLayout
from assay.rollout.sampling import sample
from assay.types import Request, Trajectory


class PagedEngine:
    """Batched decoding in waves of at most ``max_running`` rows and ``kv_cache_bytes`` of keys and values."""

    def __init__(self, policy: Policy, *, max_running: int = 64, kv_cache_bytes: float = 2e9) -> None:
        self._policy = policy
        self._max_running = max_running
        self._kv_cache_bytes = kv_cache_bytes
        self._queue: deque[Request] = deque()
        self._wave: Wave | None = None
        self.weight_version = 0

    @property
    def pending(self) -> int:
        return len(self._queue) + (len(self._wave.rows) if self._wave else 0)

    def check(self, request: Request) -> None:
        check_request(request, self._policy.context_length)
        if (need := self._bytes([request])) > self._kv_cache_bytes:
            raise EngineError(
                f"one request of {len(request.prompt_ids)} + {request.max_new_tokens} tokens needs {need / 1e9:.2g} GB "
                f"of keys and values, and [rollout] kv_cache_gb allows {self._kv_cache_bytes / 1e9:.2g}; raise it or "
                f"shorten the request"
            )

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.check(request)
        self._queue.extend(requests)

    @torch.inference_mode()
    def poll(self) -> list[Trajectory]:
        if self._wave is None:
            if not self._queue:
                return []
            self._wave = Wave(self._policy, self._admit())
        finished = self._wave.step()
        if not self._wave.rows:
            self._wave = None
        return [g.trajectory(self._policy.end_ids, self.weight_version) for g in finished]

    def abort(self) -> None:
        self._queue.clear()
        self._wave = None

    def update_weights(self, version: int) -> None:
        if self.pending:
            raise EngineError(f"weights cannot change while {self.pending} requests are running")
        # No prefix outlives its wave, so no key computed with older weights can be read.
        self.weight_version = version

    @torch.inference_mode()
    def verify(self, prompt_ids: Sequence[int], completion_ids: Sequence[int], temperature: float) -> Tensor:
        check_scoring_temperature(temperature)
        request = Request(0, 0, tuple(prompt_ids), len(completion_ids), temperature, 0)
        wave = Wave(self._policy, [request])
        logprobs = []
        for token in completion_ids:
            logprobs.append(torch.log_softmax(wave.logits_LV / temperature, dim=-1)[0, token])
            wave.advance([token])
        return torch.stack(logprobs)

    def _admit(self) -> list[Request]:
        """Requests from the front of the queue, as many as rows and memory allow (at least one)."""
        admitted = [self._queue.popleft()]
        while self._queue and len(admitted) < self._max_running:
            if self._bytes([*admitted, self._queue[0]]) > self._kv_cache_bytes:
                break
            admitted.append(self._queue.popleft())
        return admitted

    def _bytes(self, requests: Sequence[Request]) -> float:
        prompts = {r.prompt_ids for r in requests}
        longest = max(map(len, prompts))
        own = max(r.max_new_tokens for r in requests)
        return (len(prompts) * longest + len(requests) * own) * kv_bytes_per_token(self._policy)


class Wave:
    """Requests that were admitted together and decode in step.

    Requests with the same history so far share a lane, which is computed once; they part where they draw
    different tokens. ``logits_LV`` are those of each lane's next token.
    """

    def __init__(self, policy: Policy, requests: Sequence[Request]) -> None:
        self._policy = policy
        self.rows = [Generation(r) for r in requests]
        prompts = sorted({r.prompt_ids for r in requests})
        place = {prompt: i for i, prompt in enumerate(prompts)}
        self._lanes = [place[r.prompt_ids] for r in requests]
        self._lengths = [len(prompt) for prompt in prompts]
        self._cache, self.logits_LV = _prefill(policy, prompts, max(r.max_new_tokens for r in requests))

    def step(self) -> list[Generation]:
        """Sample one token for every row; rows that end leave the batch and are returned."""
        indices = [len(row.token_ids) for row in self.rows]
        tokens_R, logprobs_R = sample(self.logits_LV, self._lanes, [row.request for row in self.rows], indices)
        for row, token, logprob in zip(self.rows, tokens_R.tolist(), logprobs_R.tolist(), strict=True):
            row.append(token, logprob)
        going = [not row.finished(self._policy.end_ids) for row in self.rows]
        finished = [row for row, goes in zip(self.rows, going, strict=True) if not goes]
        self.rows, self._lanes = list(compress(self.rows, going)), list(compress(self._lanes, going))
        if self.rows:
            self.advance([row.token_ids[-1] for row in self.rows])
        return finished

    def advance(self, token_ids: Sequence[int]) -> None:
        """Compute the next logits after each row's newest token."""
        parted = list(zip(self._lanes, token_ids, strict=True))
        lane_of = {pair: i for i, pair in enumerate(dict.fromkeys(parted))}
        self._lanes = [lane_of[pair] for pair in parted]
        parents = [lane for lane, _ in lane_of]
        self._lengths = [self._lengths[lane] for lane in parents]
        self._cache.part(parents)
        device = self._policy.device
        ids = torch.tensor([[token for _, token in lane_of]], device=device)
        positions = torch.tensor([[length + self._cache.step for length in self._lengths]], device=device)
        hidden_LH = self._policy.hidden(ids, positions, self._cache)[0]
        self._cache.step += 1
        with self._policy.autocast():
            self.logits_LV = self._policy.head.logits(hidden_LH)


def kv_bytes_per_token(policy: Policy) -> float:
    """Bytes of keys and values that one token takes over all layers."""
    config = policy.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = 4 if policy.precision == "float32" else 2
    # Without grouped queries (GPT-2, GPT-NeoX) a config names the query heads alone.
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return float(2 * config.num_hidden_layers * heads * head_dim * width)


def _prefill(policy: Policy, prompts: Sequence[tuple[int, ...]], max_new_tokens: int) -> tuple[KVCache, Tensor]:
    """All distinct prompts in one pass: the cache with one lane each, and each one's next logits [P, V]."""
    row = pack(prompts, policy.device)
    recording = RecordingLayout(row.layout)
    hidden_NH = policy.hidden(row.input_ids, row.position_ids, recording)[0]
    last_P = torch.tensor([places[-1] for places in row.index], device=policy.device)
    with policy.autocast():
        logits_PV = policy.head.logits(hidden_NH[last_P])
    return KVCache(recording, row.index, max_new_tokens), logits_PV
