"""The frozen structs that cross module boundaries, and the axis legend.

Axis letters in names, everywhere: P prompts of a step, G completions of a prompt (the group), B rows
(sequences), T completion tokens, N packed tokens, V vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Message = Mapping[str, str]
"""One chat message: ``{"role": ..., "content": ...}``."""

FinishReason = Literal["stop", "length"]
"""``stop``: the policy emitted an end token; ``length``: cut off at the token limit."""

GroupState = Literal["informative", "zero_variance", "unscorable"]

Status = Literal["ok", "wrong", "timeout", "crash", "unscorable"]
"""``crash`` and ``unscorable`` carry a NaN reward: nothing was learnt about the completion."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a data set: a prompt, what verifies it, and any further columns."""

    row_id: str
    prompt: str | tuple[Message, ...]
    answer: Any
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier says of one completion.

    ``reward`` is NaN exactly when ``status`` is ``crash`` or ``unscorable``; ``correct`` is what pass@k
    counts, apart from the graded reward.
    """

    reward: float
    status: Status
    correct: bool
    reason: str = ""
    milliseconds: float = 0.0
    components: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of token ids of one origin: chosen by the policy (``action``) or given by the environment."""

    token_ids: tuple[int, ...]
    action: bool
    logprobs: tuple[float, ...]
    """The sampler's log-probability of each token; empty for tokens that the policy did not choose."""
    weight_version: int


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One sampled completion, token ids in and out. The end token is an action like any other.

    A plain completion is the case of one action segment.
    """

    sample_id: int
    group_id: int
    prompt_ids: tuple[int, ...]
    segments: tuple[Segment, ...]
    finish_reason: FinishReason

    @property
    def completion_ids(self) -> tuple[int, ...]:
        return tuple(t for s in self.segments for t in s.token_ids)

    @property
    def truncated(self) -> bool:
        """Cut off at the token limit."""
        return self.finish_reason == "length"

    @property
    def action_mask(self) -> tuple[bool, ...]:
        return tuple(s.action for s in self.segments for _ in s.token_ids)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Sampler log-probs aligned with ``completion_ids``; 0 where the policy did not choose."""
        return tuple(p for s in self.segments for p in (s.logprobs if s.action else (0.0,) * len(s.token_ids)))


@dataclass(frozen=True, slots=True)
class Request:
    """What an engine is asked for: one completion of one prompt.

    ``temperature`` 0 means greedy. Randomness depends on (``seed``, ``sample_id``, token index) alone.
    """

    sample_id: int
    group_id: int
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A trajectory with its verdict and text, for people and for the records."""

    trajectory: Trajectory
    row: Row
    text: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one prompt, their advantages, and why the group is not trained on if it is not.

    An advantage is NaN where the algorithm judges tokens and not completions.
    """

    group_id: int
    samples: tuple[Sample, ...]
    advantages: tuple[float, ...]
    state: GroupState

    @property
    def dead(self) -> bool:
        return self.state != "informative"
