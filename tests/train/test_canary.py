"""The canary sings when the engine samples from other weights than the learner's."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from assay.core.presets import PRESETS
from assay.errors import EngineError
from assay.models.learner import TrainGroup, TrainSample
from assay.models.local_learner import LocalLearner, OptimizerSettings
from assay.models.objective import Objective
from assay.models.policy import Policy
from assay.rollout.paged import PagedEngine
from assay.rollout.reference import ReferenceEngine
from assay.train.canary import TOLERANCE, Canary, agrees

PROMPT, COMPLETION = (5, 9, 14, 3, 22), (17, 40, 8, 2)


def learner_of(policy: Policy, temperature: float = 1.0) -> LocalLearner:
    settings = OptimizerSettings(learning_rate=1e-2, total_steps=10)
    return LocalLearner(policy, Objective(PRESETS["grpo"], temperature=temperature), settings, micro_batch_tokens=100)


@pytest.mark.parametrize("engine", [PagedEngine, ReferenceEngine])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_same_weights_agree(engine: type, temperature: float, load: Callable[..., Policy]) -> None:
    policy = load()
    canary = Canary(PROMPT, COMPLETION, temperature, "float32")
    assert 0 <= canary.check(engine(policy), learner_of(policy, temperature)) < 1e-4


def test_a_long_prompt_and_completion_are_cut_so_that_it_stays_quick(load: Callable[..., Policy]) -> None:
    policy = load()
    long = tuple(range(4, 60))
    assert Canary(long, long, 1.0, "float32").check(PagedEngine(policy), learner_of(policy)) < 1e-4


def test_an_engine_without_the_last_update_is_stale(load: Callable[..., Policy]) -> None:
    policy = load()
    engine, learner = PagedEngine(policy), learner_of(policy)
    sample = TrainSample((7, 2), (True, True), 1.0, (-1.0, -1.0))
    canary = Canary(PROMPT, COMPLETION, 1.0, "float32")
    learner.step()
    with pytest.raises(EngineError, match="weights of version 0, the learner is at 1: its weights were not updated"):
        canary.check(engine, learner)
    engine.update_weights(learner.weight_version)
    canary.check(engine, learner)
    assert learner.logprobs([TrainGroup(PROMPT, (sample,), 2)])


def test_changed_weights_are_found_although_the_version_is_right(load: Callable[..., Policy]) -> None:
    mine, other = load(), load()
    canary = Canary(PROMPT, COMPLETION, 1.0, "float32")
    canary.check(PagedEngine(other), learner_of(mine))
    with torch.no_grad():
        next(iter(other.trainable().values())).mul_(1.01)
    with pytest.raises(
        EngineError, match=r"disagree on fixed tokens by .* nats .*tolerance in float32: 1e-3"
    ) as caught:
        canary.check(PagedEngine(other), learner_of(mine))
    assert caught.value.exit_code == 4


def test_another_temperature_is_found(load: Callable[..., Policy]) -> None:
    policy = load()
    with pytest.raises(EngineError, match="disagree"):
        Canary(PROMPT, COMPLETION, 0.9, "float32").check(PagedEngine(policy), learner_of(policy, 1.0))


def test_log_probs_that_are_not_numbers_are_a_disagreement(load: Callable[..., Policy]) -> None:
    policy = load()
    with torch.no_grad():
        next(iter(policy.trainable().values())).fill_(torch.nan)
    with pytest.raises(EngineError, match="by nan nats"):
        Canary(PROMPT, COMPLETION, 1.0, "float32").check(PagedEngine(policy), learner_of(policy))


@pytest.mark.parametrize(
    ("mean", "largest", "dtype", "fine"),
    [
        *[(1e-5, 1e-3, "float32", True), (1e-5, 1.01e-3, "float32", False), (math.nan, math.nan, "float32", False)],
        *[(0.1, 3.0, "bfloat16", True), (0.11, 0.2, "bfloat16", False), (math.nan, math.nan, "bfloat16", False)],
    ],
)
def test_float32_is_judged_by_its_worst_token_and_bfloat16_by_the_mean(
    mean: float, largest: float, dtype: str, fine: bool
) -> None:
    assert agrees(mean, largest, dtype) is fine
    assert dtype in TOLERANCE
