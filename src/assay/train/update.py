"""One rollout's updates: minibatches of whole groups, each against its own global denominators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from assay.core.presets import Preset
from assay.models.learner import Learner, TrainGroup, UpdateStats
from assay.models.objective import add_stats
from assay.models.reference import Reference
from assay.train.groups import denominators_of
from assay.train.token_advantages import with_token_advantages


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What the updates of one rollout showed; ``grad_norm`` and ``learning_rate`` are of the last one."""

    stats: UpdateStats
    """Over all updates; ``loss`` is their mean."""
    grad_norm: float | None
    learning_rate: float | None
    skipped: int
    """Updates skipped because the gradient was not finite."""


def update(
    learner: Learner,
    reference: Reference | None,
    groups: Sequence[TrainGroup],
    preset: Preset,
    beta: float,
    *,
    minibatches: int,
    epochs: int,
    max_length: int,
    temperature: float,
    reference_tokens: int,
    before_first_step: Callable[[int, int], None],
) -> UpdateResult:
    """Train on the groups. With nothing alive the optimiser does not step at all.

    ``beta`` is the weight of the KL, in the loss or the reward as the preset has it; 0 without a reference.
    ``before_first_step`` is called with (micro-batches done, of how many) and may raise to stop the update,
    but only until weights have moved: from then on the update is finished.
    """
    if reference is not None:
        groups = _with(groups, reference.logprobs(groups, temperature, reference_tokens), "ref_logprobs")
    kl_in_reward = beta > 0 and preset.kl_in == "reward"
    if minibatches * epochs > 1 or kl_in_reward:
        # After the first step the current log-probs are no longer those of the policy that sampled.
        groups = _with(groups, learner.logprobs(groups), "old_logprobs")
    groups = with_token_advantages(groups, preset, beta if kl_in_reward else 0.0)
    stats, norm, rate, skipped, updates = UpdateStats(), None, None, 0, 0
    for _ in range(epochs):
        for batch in _minibatches(groups, minibatches):
            watch = before_first_step if norm is None else None
            seen = learner.forward_backward(batch, denominators_of(batch, max_length), watch)
            stats = add_stats(stats, seen)
            norm, rate = learner.step()
            skipped += not math.isfinite(norm)
            updates += 1
    return UpdateResult(replace(stats, loss=stats.loss / max(updates, 1)), norm, rate, skipped)


def _minibatches(groups: Sequence[TrainGroup], count: int) -> list[list[TrainGroup]]:
    """At most ``count`` parts of nearly equal size; never an empty one."""
    parts = [list(groups[i * len(groups) // count : (i + 1) * len(groups) // count]) for i in range(count)]
    return [part for part in parts if part]


def _with(groups: Sequence[TrainGroup], logprobs: Sequence[Sequence[object]], field: str) -> list[TrainGroup]:
    return [
        replace(g, samples=tuple(replace(s, **{field: p}) for s, p in zip(g.samples, row, strict=True)))  # type: ignore[arg-type]
        for g, row in zip(groups, logprobs, strict=True)
    ]
