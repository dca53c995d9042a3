"""The tokens of one request as they come, and when they end. Every engine uses this one definition."""

from __future__ import annotations

from dataclasses import dataclass, field

from assay.types import Request, Segment, Trajectory


@dataclass(slots=True)
class Generation:
    """A request being answered. The end token is part of the completion."""

    request: Request
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def append(self, token_id: int, logprob: float) -> None:
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)

    def finished(self, end_ids: frozenset[int]) -> bool:
        """Ended by an end token or at the limit: found by position, never by a token's value before that."""
        return bool(self.token_ids) and (
            self.token_ids[-1] in end_ids or len(self.token_ids) >= self.request.max_new_tokens
        )

    def trajectory(self, end_ids: frozenset[int], weight_version: int) -> Trajectory:
        segment = Segment(tuple(self.token_ids), True, tuple(self.logprobs), weight_version)
        return Trajectory(
            sample_id=self.request.sample_id,
            group_id=self.request.group_id,
            prompt_ids=self.request.prompt_ids,
            segments=(segment,),
            finish_reason="stop" if self.token_ids[-1] in end_ids else "length",
        )
