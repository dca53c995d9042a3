"""One rollout's updates: minibatches of whole groups, each against its own global denominators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from assay.models.critic import Critic
from assay.models.learner import Learner, TrainGroup, UpdateStats
from assay.models.objective import add_stats
from assay.models.reference import Reference
from assay.train.groups import denominators_of

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


def take_steps(
    batches: Sequence[Sequence[TrainGroup]],
    learner: Learner,
    *,
    max_length: int,
    watch: Watch,
    critic: Critic | None = None,
) -> UpdateResult:
    """One optimiser step of the learner, and of a critic, for each minibatch; none without minibatches.

    ``watch`` may raise only until weights have moved: from then on the update is finished.
    """
    stats, norm, rate, skipped = UpdateStats(), None, None, 0
    value_loss, critic_norm = 0.0, None
    for i, batch in enumerate(batches):
        denominators = denominators_of(batch, max_length)
        # Both gradients before either step: until then the step can still be given up whole.
        may_stop = watch if i == 0 else None
        stats = add_stats(stats, learner.forward_backward(batch, denominators, may_stop))
        if critic is not None:
            value_loss += critic.forward_backward(batch, denominators, may_stop)
            critic_norm, _ = critic.step()
            skipped += not math.isfinite(critic_norm)
        norm, rate = learner.step()
        skipped += not math.isfinite(norm)
    count = max(len(batches), 1)
    metrics = {} if critic is None else {"value_loss": value_loss / count, "critic_grad_norm": critic_norm}
    return UpdateResult(replace(stats, loss=stats.loss / count), norm, rate, skipped, metrics if batches else {})


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
