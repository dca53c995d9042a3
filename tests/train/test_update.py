"""Updates of one rollout: whole groups, their own denominators, and no step without a living group."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from assay.core.loss import Denominators
from assay.core.presets import PRESETS
from assay.errors import Interrupted
from assay.models.learner import TrainGroup, TrainSample, UpdateStats
from assay.models.local_learner import LocalLearner, OptimizerSettings
from assay.models.objective import Objective
from assay.models.policy import Policy
from assay.models.reference import Reference
from assay.train.assembly import Job
from assay.train.grpo import improve
from assay.train.update import UpdateResult


def group(number: int, completions: Sequence[tuple[int, ...]] = ((7, 9, 2), (8, 2))) -> TrainGroup:
    samples = tuple(TrainSample(c, (True,) * len(c), (-1.0) ** i, (-1.0,) * len(c)) for i, c in enumerate(completions))
    return TrainGroup((5, 10 + number), samples, sum(map(len, completions)))


class FakeLearner:
    """Writes down what it is asked for."""

    def __init__(self, norms: Sequence[float] = ()) -> None:
        self.log: list[str] = []
        self.batches: list[list[TrainGroup]] = []
        self.denominators: list[Denominators] = []
        self._norms = list(norms)

    def logprobs(self, groups: Sequence[TrainGroup]) -> list[tuple[torch.Tensor, ...]]:
        self.log.append("logprobs")
        return [tuple(torch.full((len(s.completion_ids),), -3.0) for s in g.samples) for g in groups]

    def forward_backward(self, groups: Sequence[TrainGroup], denominators: Denominators, watch: Any) -> UpdateStats:
        self.log.append("backward" if watch is None else "backward, watched")
        self.batches.append(list(groups))
        self.denominators.append(denominators)
        return UpdateStats(loss=1.0, tokens=denominators.tokens)

    def set_beta(self, beta: float) -> None:
        pass

    def step(self) -> tuple[float, float]:
        self.log.append("step")
        return (self._norms.pop(0) if self._norms else 0.5), 0.1 * self.log.count("step")


def run(
    learner: object, groups: Sequence[TrainGroup], reference: Reference | None = None, **given: Any
) -> UpdateResult:
    watch = given.pop("watch", lambda *_: None)
    algorithm = SimpleNamespace(**{"minibatches": 1, "epochs": 1, **given})
    job = SimpleNamespace(
        config=SimpleNamespace(algorithm=algorithm, rollout=SimpleNamespace(max_new_tokens=6, temperature=1.0)),
        preset=PRESETS["grpo"],
        beta=(0.1 if reference is not None else 0.0, 0.0),
        learner=learner,
        reference=reference,
        micro_batch_tokens=100,
    )
    return improve(cast(Job, job), groups, watch)


def test_minibatches_are_of_whole_groups_each_with_its_own_denominators() -> None:
    learner = FakeLearner()
    groups = [group(0), group(1, ((7, 2), (8, 2), (9, 2))), group(2), group(3), group(4)]
    result = run(learner, groups, minibatches=2)
    assert [[g.prompt_ids for g in batch] for batch in learner.batches] == [
        [(5, 10), (5, 11)],
        [(5, 12), (5, 13), (5, 14)],
    ]
    assert learner.denominators == [
        Denominators(sequences=5, tokens=11, prompts=2, max_length=6),
        Denominators(sequences=6, tokens=15, prompts=3, max_length=6),
    ]
    assert result.stats.tokens == 26
    assert result.stats.loss == 1.0
    assert (result.grad_norm, result.learning_rate, result.skipped) == (0.5, pytest.approx(0.2), 0)


@pytest.mark.parametrize(("groups", "sizes"), [(1, [1]), (2, [1, 1]), (3, [1, 1, 1]), (7, [2, 2, 3])])
def test_fewer_living_groups_than_minibatches_make_no_empty_one(groups: int, sizes: list[int]) -> None:
    learner = FakeLearner()
    run(learner, [group(i) for i in range(groups)], minibatches=3)
    assert [len(batch) for batch in learner.batches] == sizes
    assert learner.log.count("step") == len(sizes)


def test_more_than_one_update_needs_the_log_probs_of_before_the_first() -> None:
    learner = FakeLearner()
    run(learner, [group(0), group(1)], epochs=2)
    assert learner.log == ["logprobs", "backward, watched", "step", "backward", "step"]
    old = [s.old_logprobs for batch in learner.batches for g in batch for s in g.samples]
    assert len(old) == 8
    assert all(o is not None and o.eq(-3.0).all() for o in old)

    learner = FakeLearner()
    run(learner, [group(0), group(1)])
    assert learner.log == ["backward, watched", "step"]
    assert all(s.old_logprobs is None for g in learner.batches[0] for s in g.samples)


def test_updates_with_a_gradient_that_is_not_finite_are_counted() -> None:
    result = run(FakeLearner([math.inf, 0.5, math.nan]), [group(0)], epochs=3)
    assert result.skipped == 2
    assert result.grad_norm is not None
    assert math.isnan(result.grad_norm)


def learner_of(policy: Policy, beta: float = 0.0) -> LocalLearner:
    settings = OptimizerSettings(learning_rate=1e-2, total_steps=10, weight_decay=0.1)
    return LocalLearner(policy, Objective(PRESETS["grpo"], beta), settings, micro_batch_tokens=100)


def weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in policy.module.named_parameters()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("epochs", [1, 2])
def test_nothing_alive_means_no_step_and_bit_identical_weights(epochs: int, load: Callable[..., Policy]) -> None:
    policy = load()
    learner = learner_of(policy)
    # Momentum and weight decay would move the weights if the optimiser stepped.
    run(learner, [group(0)])
    before, version = weights(policy), learner.weight_version
    result = run(learner, [], epochs=epochs, minibatches=2)
    assert same(weights(policy), before)
    assert learner.weight_version == version == 1
    assert result == UpdateResult(UpdateStats(), None, None, 0)


def test_a_stop_before_the_first_step_leaves_the_weights_alone(load: Callable[..., Policy]) -> None:
    def small() -> tuple[Policy, LocalLearner]:
        policy = load()
        settings = OptimizerSettings(learning_rate=1e-2, total_steps=1)
        return policy, LocalLearner(policy, Objective(PRESETS["grpo"]), settings, micro_batch_tokens=1)

    def stop(done: int, total: int) -> None:
        if done == 1:
            raise Interrupted("now")

    policy, learner = small()
    before = weights(policy)
    with pytest.raises(Interrupted):
        run(learner, [group(0), group(1)], watch=stop)
    assert same(weights(policy), before)
    assert learner.weight_version == 0

    # What was accumulated until then can be forgotten, and the step be done as if nothing had been.
    learner.discard_gradients()
    run(learner, [group(2)])
    other, fresh = small()
    run(fresh, [group(2)])
    assert same(weights(policy), weights(other))
    assert not same(weights(policy), before)


def test_the_reference_is_that_of_the_start(load: Callable[..., Policy]) -> None:
    policy = load()
    learner, reference = learner_of(policy, beta=0.1), Reference(policy)
    first = run(learner, [group(0)], reference)
    second = run(learner, [group(0)], reference)
    assert first.stats.kl_sum == pytest.approx(0, abs=1e-6)
    assert second.stats.kl_sum is not None
    assert second.stats.kl_sum > 1e-4
    assert second.stats.kl_min is not None
    assert second.stats.kl_min >= 0
