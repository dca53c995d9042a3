"""One rollout's updates: minibatches of whole groups, each against its own global denominators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from assay.core.presets import Preset
from assay.models.learner import Learner, TrainGroup, UpdateStats
from assay.models.objective import add_stats
from assay.models.reference import Reference
from assay.train.groups import denominators_of
from assay.train.token_advantages import with_token_advantages

Watch = Callable[[int, int], None]
"""Called with (micro-batches done, of how many) before weights move; may raise to stop the update."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What the updates of one rollout showed; ``grad_norm`` and ``learning_rate`` are of the last one."""

    stats: UpdateStats
    """Over all updates; ``loss`` is their mean."""
    grad_norm: float | None
    learning_rate: float | None
    skipped: int
    """Updates skipped because the gradient was not finite."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """What this algorithm alone has."""


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
    before_first_step: Watch,
) -> UpdateResult:
    """Train on the groups. With nothing alive the optimiser does not step at all.

    ``beta`` is the weight of the KL, in the loss or the reward as the preset has it; 0 without a reference.
    ``before_first_step`` may raise only until weights have moved: from then on the update is finished.
    """
    kl_in_reward = beta > 0 and preset.kl_in == "reward"
    groups = with_logprobs(
        learner,
        reference,
        groups,
        # After the first step the current log-probs are no longer those of the policy that sampled.
        old=minibatches * epochs > 1 or kl_in_reward,
        temperature=temperature,
        reference_tokens=reference_tokens,
    )
    groups = with_token_advantages(groups, preset, beta if kl_in_reward else 0.0)
    stats, norm, rate, skipped, updates = UpdateStats(), None, None, 0, 0
    for batch in minibatches_of(groups, minibatches, epochs):
        watch = before_first_step if norm is None else None
        stats = add_stats(stats, learner.forward_backward(batch, denominators_of(batch, max_length), watch))
        norm, rate = learner.step()
        skipped += not math.isfinite(norm)
        updates += 1
    return UpdateResult(replace(stats, loss=stats.loss / max(updates, 1)), norm, rate, skipped)


def with_logprobs(
    learner: Learner,
    reference: Reference | None,
    groups: Sequence[TrainGroup],
    *,
    old: bool,
    temperature: float,
    reference_tokens: int,
) -> list[TrainGroup]:
    """The groups with the reference's log-probs, if there is one, and with the learner's own if ``old``."""
    if reference is not None:
        groups = with_tensors(groups, reference.logprobs(groups, temperature, reference_tokens), "ref_logprobs")
    if old:
        groups = with_tensors(groups, learner.logprobs(groups), "old_logprobs")
    return list(groups)


def with_tensors(groups: Sequence[TrainGroup], rows: Sequence[Sequence[object]], name: str) -> list[TrainGroup]:
    """The groups with one tensor a sample in the samples' field ``name``."""
    return [
        replace(g, samples=tuple(replace(s, **{name: t}) for s, t in zip(g.samples, row, strict=True)))  # type: ignore[arg-type]
        for g, row in zip(groups, rows, strict=True)
    ]


def minibatches_of(groups: Sequence[TrainGroup], count: int, epochs: int) -> list[list[TrainGroup]]:
    """At most ``count`` parts of nearly equal size, ``epochs`` times over; never an empty one."""
    parts = [list(groups[i * len(groups) // count : (i + 1) * len(groups) // count]) for i in range(count)]
    return [part for part in parts if part] * epochs
