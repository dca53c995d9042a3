"""The canary: after every weight update, engine and learner must agree on fixed tokens."""

from __future__ import annotations

import torch

from assay.errors import EngineError
from assay.models.learner import Learner, TrainGroup, TrainSample
from assay.rollout.engine import Engine

TOLERANCE = {"float32": "1e-3 nats at most", "bfloat16": "0.1 nats on average"}
"""The same kernels give 2e-5 in float32. In bfloat16 single tokens move by tenths of a nat, so the mean decides."""


def agrees(mean: float, largest: float, dtype: str) -> bool:
    """Whether gaps between engine and learner, in nats, are no more than their arithmetic explains; NaN is not."""
    return largest <= 1e-3 if dtype == "float32" else mean <= 0.1


class Canary:
    """A few fixed tokens, scored by both sides."""

    def __init__(self, prompt_ids: tuple[int, ...], completion_ids: tuple[int, ...], temperature: float, dtype: str):
        # Short, so that it costs a fraction of a second after every step.
        self._prompt = prompt_ids[-32:]
        self._completion = completion_ids[:8]
        self._temperature = temperature
        self._dtype = dtype

    def check(self, engine: Engine, learner: Learner) -> float:
        """The largest gap in nats. Raises EngineError beyond the tolerance or for stale weights."""
        if engine.weight_version != learner.weight_version:
            raise EngineError(
                f"the engine samples from weights of version {engine.weight_version}, the learner is at "
                f"{learner.weight_version}: its weights were not updated"
            )
        n = len(self._completion)
        sample = TrainSample(self._completion, (True,) * n, 0.0, (0.0,) * n)
        (theirs,) = learner.logprobs([TrainGroup(self._prompt, (sample,), n)])[0]
        ours = engine.verify(self._prompt, self._completion, self._temperature)
        gaps = torch.abs(ours.double() - theirs.double())
        mean, largest = gaps.mean().item(), gaps.max().item()
        if not agrees(mean, largest, self._dtype):
            raise EngineError(
                f"engine and learner disagree on fixed tokens by {mean:.3g} nats on average and {largest:.3g} at most "
                f"(tolerance in {self._dtype}: {TOLERANCE[self._dtype]}): the engine does not sample from the "
                f"learner's weights (version {learner.weight_version})"
            )
        return largest
