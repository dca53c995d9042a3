"""The invariance law: loss and gradient depend on the samples and on the formula, on nothing else.

Micro-batches, the order of groups and of samples, packing and padding change nothing; the oracle is MATH.md's
sum written anew over plain padded rows with dense logits. All to 1e-6 relative, on two models: one of ordinary
weights in float32, and one of wide weights, where every token before matters much, in float64 (in float32 plain
transformers itself is 3e-6 away from float64 there).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from assay.core.loss import Aggregation, Denominators
from assay.core.presets import Preset
from assay.models.learner import TrainGroup, TrainSample
from assay.models.local_learner import LocalLearner, OptimizerSettings
from assay.models.objective import Objective
from assay.models.packing import TokenIds
from assay.models.policy import Policy

Gradients = dict[str, Tensor]

AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)
MAX_LENGTH = 12
BETA, EPS_LOW, EPS_HIGH, TEMPERATURE = 0.3, 0.2, 0.28, 0.8
RELATIVE = 1e-6

SYSTEM = (5, 6, 7)
COMPLETIONS: dict[TokenIds, list[tuple[TokenIds, float]]] = {
    (*SYSTEM, 8): [((10, 11, 12, 2), 1.2), ((10, 11, 13), -0.7), ((10, 11, 12, 2), 1.2), ((14, 30), -1.7)],
    (*SYSTEM, 8, 9): [((20,), 0.5), ((20, 21, 22, 23, 24, 25, 26, 2), 1.5), ((20, 21), -0.4)],
    (40, 41): [((42, 43, 2, 44, 45, 46), 0.9), ((5, 6, 7, 8, 9, 10, 11, 12, 13), -0.3)],
}


def observed(completion: TokenIds) -> tuple[bool, ...]:
    """A completion of several turns: its third and fourth token came from the environment."""
    return tuple(not (len(completion) > 5 and t in (2, 3)) for t in range(len(completion)))


def make_groups(dtype: torch.dtype, old: bool, ref: bool) -> list[TrainGroup]:
    generator = torch.Generator().manual_seed(3)

    def logprobs(given: bool, length: int) -> Tensor | None:
        drawn = -3 * torch.rand(length, generator=generator, dtype=torch.float64)
        return drawn.to(dtype) if given else None

    groups = []
    for prompt, completions in COMPLETIONS.items():
        samples = tuple(
            TrainSample(
                ids, observed(ids), advantage, (0.0,) * len(ids), logprobs(old, len(ids)), logprobs(ref, len(ids))
            )
            for ids, advantage in completions
        )
        groups.append(TrainGroup(prompt, samples, sum(sum(s.mask) for s in samples)))
    return groups


def near(groups: list[TrainGroup], current: list[tuple[Tensor, ...]]) -> list[TrainGroup]:
    """Old and reference log-probs close to the current ones: ratios on both sides of both clips, and some within."""
    generator = torch.Generator().manual_seed(4)

    def around(logprobs_T: Tensor, given: Tensor | None, spread: float) -> Tensor | None:
        noise_T = torch.randn(len(logprobs_T), generator=generator, dtype=torch.float64).to(logprobs_T)
        return None if given is None else logprobs_T + spread * noise_T

    return [
        replace(
            group,
            samples=tuple(
                replace(s, old_logprobs=around(c, s.old_logprobs, 0.3), ref_logprobs=around(c, s.ref_logprobs, 0.5))
                for s, c in zip(group.samples, logprobs, strict=True)
            ),
        )
        for group, logprobs in zip(groups, current, strict=True)
    ]


def denominators(groups: list[TrainGroup]) -> Denominators:
    samples = [s for g in groups for s in g.samples]
    return Denominators(len(samples), sum(sum(s.mask) for s in samples), len(groups), MAX_LENGTH)


def learner_of(policy: Policy, aggregation: Aggregation, beta: float, micro_batch_tokens: int) -> LocalLearner:
    preset = Preset(eps_low=EPS_LOW, eps_high=EPS_HIGH, aggregation=aggregation)
    objective = Objective(preset, beta=beta, temperature=TEMPERATURE)
    return LocalLearner(policy, objective, OptimizerSettings(1e-3, 10), micro_batch_tokens=micro_batch_tokens)


def learnt(
    policy: Policy, groups: list[TrainGroup], aggregation: Aggregation, beta: float, micro_batch_tokens: int = 10_000
) -> tuple[float, Gradients]:
    policy.module.zero_grad()
    learner = learner_of(policy, aggregation, beta, micro_batch_tokens)
    stats = learner.forward_backward(groups, denominators(groups))
    return stats.loss, {name: p.grad.clone() for name, p in policy.trainable().items() if p.grad is not None}


def oracle(model: Any, groups: list[TrainGroup], aggregation: Aggregation, beta: float) -> tuple[float, Gradients]:
    """MATH.md, term by term: one padded row a completion, the whole vocabulary's logits, plain sums."""
    rows = [(g, s) for g in groups for s in g.samples]
    longest = max(len(g.prompt_ids) + len(s.completion_ids) for g, s in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    real = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, (g, s) in enumerate(rows):
        whole = torch.tensor(g.prompt_ids + s.completion_ids)
        ids[i, : len(whole)], real[i, : len(whole)] = whole, 1
    logits = model(input_ids=ids, attention_mask=real).logits / TEMPERATURE
    n, total = len(rows), sum(sum(s.mask) for _, s in rows)
    loss = logits.new_zeros(())
    for i, (g, s) in enumerate(rows):
        start, length = len(g.prompt_ids), len(s.completion_ids)
        of_prompt = sum(sum(other.mask) for other in g.samples)
        share = {
            "sequence_mean": 1 / (n * sum(s.mask)),
            "token_mean": 1 / total,
            "fixed_length": 1 / (n * MAX_LENGTH),
            "prompt_mean": 1 / (len(groups) * of_prompt),
        }[aggregation]
        for t in range(length):
            if not s.mask[t]:
                continue
            logp = logits[i, start + t - 1].log_softmax(-1)[s.completion_ids[t]]
            ratio = (logp - (logp.detach() if s.old_logprobs is None else s.old_logprobs[t])).exp()
            clipped = ratio.clamp(1 - EPS_LOW, 1 + EPS_HIGH)
            term = -torch.minimum(ratio * s.advantage, clipped * s.advantage)
            if beta and s.ref_logprobs is not None:
                x = s.ref_logprobs[t] - logp
                term = term + beta * (x.exp() - x - 1)
            loss = loss + share * term
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def difference(a: Gradients, b: Gradients) -> float:
    """Norm of the difference over the norm, over all parameters as one vector."""
    assert a.keys() == b.keys()
    flat_a, flat_b = (torch.cat([g[name].flatten().double() for name in sorted(a)]) for g in (a, b))
    return float((flat_a - flat_b).norm() / flat_b.norm())


def same(a: tuple[float, Gradients], b: tuple[float, Gradients]) -> None:
    assert a[0] == pytest.approx(b[0], rel=RELATIVE)
    assert difference(a[1], b[1]) < RELATIVE


MODELS = {"ordinary weights, float32": (0.02, torch.float32), "wide weights, float64": (0.3, torch.float64)}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[float, torch.dtype]:
    """Spread of the weights and their precision."""
    return MODELS[request.param]


@pytest.fixture
def policy(load: Callable[..., Policy], model: tuple[float, torch.dtype]) -> Policy:
    spread, dtype = model
    loaded = load(spread=spread)
    loaded.module.to(dtype)
    return loaded


@pytest.fixture(params=["on-policy", "old and reference"])
def case(
    request: pytest.FixtureRequest, policy: Policy, model: tuple[float, torch.dtype]
) -> tuple[list[TrainGroup], float]:
    """Groups and beta."""
    groups = make_groups(model[1], old="old" in request.param, ref="reference" in request.param)
    current = learner_of(policy, "token_mean", 0.0, 10_000).logprobs(groups)
    return near(groups, current), BETA if "reference" in request.param else 0.0


Case = tuple[list[TrainGroup], float]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_packed_micro_batches_are_the_formula_over_plain_padded_rows(
    policy: Policy, plain: Callable[..., Any], model: tuple[float, torch.dtype], case: Case, aggregation: Aggregation
) -> None:
    groups, beta = case
    spread, dtype = model
    expected = oracle(plain(spread=spread, dtype=dtype), groups, aggregation, beta)
    same(learnt(policy, groups, aggregation, beta), expected)
    same(learnt(policy, groups, aggregation, beta, micro_batch_tokens=12), expected)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_other_architectures_too(load: Callable[..., Policy], plain: Callable[..., Any], architecture: str) -> None:
    groups = make_groups(torch.float32, old=False, ref=False)
    expected = oracle(plain(architecture, spread=0.02), groups, "sequence_mean", 0.0)
    same(learnt(load(architecture, spread=0.02), groups, "sequence_mean", 0.0, micro_batch_tokens=20), expected)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_micro_batches_do_not_matter(policy: Policy, case: Case, aggregation: Aggregation) -> None:
    groups, beta = case
    whole = learnt(policy, groups, aggregation, beta)
    for micro_batch_tokens in (1, 12):
        same(learnt(policy, groups, aggregation, beta, micro_batch_tokens), whole)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_order_of_groups_and_of_samples_does_not_matter(
    policy: Policy, case: Case, aggregation: Aggregation
) -> None:
    groups, beta = case
    turned = [replace(g, samples=g.samples[1:] + g.samples[:1]) for g in reversed(groups)]
    same(learnt(policy, turned, aggregation, beta, 15), learnt(policy, groups, aggregation, beta))


def test_several_calls_add_up_to_one(policy: Policy, case: Case) -> None:
    groups, beta = case
    policy.module.zero_grad()
    learner = learner_of(policy, "token_mean", beta, 10_000)
    loss = sum(learner.forward_backward([g], denominators(groups)).loss for g in groups)
    added = {name: p.grad.clone() for name, p in policy.trainable().items() if p.grad is not None}
    same((loss, added), learnt(policy, groups, "token_mean", beta))


def test_tokens_of_the_environment_have_no_loss(policy: Policy, case: Case) -> None:
    """What is recorded where the mask is False is never read."""

    def spoilt(values: Tensor | None, mask: tuple[bool, ...]) -> Tensor | None:
        return None if values is None else torch.where(torch.tensor(mask), values, -50.0)

    groups, beta = case
    changed = [
        replace(
            g,
            samples=tuple(
                replace(s, old_logprobs=spoilt(s.old_logprobs, s.mask), ref_logprobs=spoilt(s.ref_logprobs, s.mask))
                for s in g.samples
            ),
        )
        for g in groups
    ]
    assert any(not all(s.mask) for g in groups for s in g.samples)
    same(learnt(policy, changed, "sequence_mean", beta), learnt(policy, groups, "sequence_mean", beta))


def test_samples_whose_tokens_all_came_from_the_environment_teach_nothing(policy: Policy) -> None:
    sample = TrainSample((10, 11, 12), (False,) * 3, 1.0, (0.0,) * 3)
    loss, gradients = learnt(policy, [TrainGroup((5,), (sample,), 0)], "sequence_mean", 0.0)
    assert loss == 0
    assert not any(g.any() for g in gradients.values())


def test_the_cases_hold_clipped_and_unclipped_tokens_of_either_sign(load: Callable[..., Policy]) -> None:
    policy = load()
    groups = make_groups(torch.float32, old=True, ref=True)
    current = learner_of(policy, "token_mean", 0.0, 10_000).logprobs(groups)
    learner = learner_of(policy, "token_mean", BETA, 10_000)
    for sign in (1, -1):
        kept = [
            replace(g, samples=tuple(s for s in g.samples if s.advantage * sign > 0)) for g in near(groups, current)
        ]
        stats = learner.forward_backward(kept, denominators(kept))
        assert 0 < stats.clipped < stats.tokens
