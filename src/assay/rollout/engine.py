"""The Engine protocol: what every rollout engine is to the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from assay.errors import EngineError
from assay.types import Request, Trajectory


class Engine(Protocol):
    """Turns requests into trajectories. Token ids in, token ids out; finished ones leave as they finish."""

    @property
    def weight_version(self) -> int:
        """The version of the weights that new tokens are sampled from."""
        ...

    def check(self, request: Request) -> None:
        """Raise EngineError for a request that could never be answered here."""
        ...

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests, each checked."""
        ...

    def poll(self) -> list[Trajectory]:
        """Do one unit of work and return what it finished; an empty list while nothing has."""
        ...

    def abort(self) -> None:
        """Forget everything queued and running."""
        ...

    def update_weights(self, version: int) -> None:
        """Take the learner's current weights as ``version`` and drop all that was computed with older ones.

        Raises EngineError while requests are running.
        """
        ...

    def verify(self, prompt_ids: Sequence[int], completion_ids: Sequence[int], temperature: float) -> Tensor:
        """The engine's own log-probs [T] of a given completion, for the canary. Only while idle."""
        ...

    @property
    def pending(self) -> int:
        """Requests submitted and not yet returned."""
        ...


def generate(
    engine: Engine, requests: Sequence[Request], on_progress: Callable[[int], None] | None = None
) -> list[Trajectory]:
    """Submit, wait for all, and return trajectories in the order of the requests.

    Raises EngineError if two requests have the same sample id: they would draw the same numbers.
    """
    if len({r.sample_id for r in requests}) < len(requests):
        raise EngineError(f"{len(requests)} requests share sample ids; every request needs its own")
    engine.submit(requests)
    done: dict[int, Trajectory] = {}
    while len(done) < len(requests):
        for trajectory in engine.poll():
            done[trajectory.sample_id] = trajectory
        if on_progress is not None:
            on_progress(len(done))
    return [done[r.sample_id] for r in requests]


def check_scoring_temperature(temperature: float) -> None:
    """Raise EngineError for a temperature at which log-probs are not defined."""
    if not temperature > 0:
        raise EngineError(f"log-probs need a positive temperature, got {temperature}")


def check_request(request: Request, context_length: int) -> None:
    """Raise EngineError unless the prompt and all new tokens fit the context."""
    if request.max_new_tokens < 1:
        raise EngineError(f"max_new_tokens must be at least 1, got {request.max_new_tokens}")
    if request.temperature < 0:
        raise EngineError(f"temperature must not be negative, got {request.temperature}")
    need = len(request.prompt_ids) + request.max_new_tokens
    if not request.prompt_ids or need > context_length:
        raise EngineError(
            f"a prompt of {len(request.prompt_ids)} tokens and {request.max_new_tokens} new tokens need {need} "
            f"positions, and the model's context has {context_length}; shorten the prompt (at least 1 token) or "
            f"lower [rollout] max_new_tokens"
        )
