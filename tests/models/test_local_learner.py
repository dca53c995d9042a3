"""The learner of one process: its optimiser, LoRA, the frozen reference, and 16-bit arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from assay.core.loss import Denominators
from assay.core.presets import PRESETS
from assay.models.learner import TrainGroup, TrainSample
from assay.models.local_learner import LocalLearner, OptimizerSettings, Stepper
from assay.models.objective import Objective
from assay.models.policy import Policy
from assay.models.reference import Reference
from assay.models.scoring import packed_logprobs

Load = Callable[..., Policy]

SETTINGS = OptimizerSettings(learning_rate=1e-2, total_steps=100)
SAMPLES = tuple(
    TrainSample(ids, (True,) * len(ids), advantage, (0.0,) * len(ids))
    for ids, advantage in [((10, 11, 2), 1.0), ((12, 13, 14, 15), -1.0), ((10, 14), 0.5)]
)
GROUPS = [TrainGroup((5, 6, 7), SAMPLES, 9), TrainGroup((8, 9), SAMPLES[:2], 7)]
DENOMINATORS = Denominators(sequences=5, tokens=16, prompts=2, max_length=4)


def learner_of(policy: Policy, settings: OptimizerSettings = SETTINGS, beta: float = 0.0) -> LocalLearner:
    return LocalLearner(policy, Objective(PRESETS["grpo"], beta=beta), settings, micro_batch_tokens=100)


def learn(learner: LocalLearner, steps: int = 1) -> None:
    for _ in range(steps):
        learner.forward_backward(GROUPS, DENOMINATORS)
        learner.step()


def copied(policy: Policy) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in policy.module.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def scored(policy: Policy, groups: list[TrainGroup] = GROUPS) -> Tensor:
    with torch.no_grad():
        return torch.cat(packed_logprobs(policy, groups, 1.0)[0])


def referred(reference: Reference) -> Tensor:
    return torch.cat([t for group in reference.logprobs(GROUPS, 1.0, 100) for t in group])


def one_parameter(**settings: float) -> tuple[torch.nn.Parameter, Stepper]:
    parameter = torch.nn.Parameter(torch.zeros(2))
    fields = {"learning_rate": 0.1, "total_steps": 10, **settings}
    return parameter, Stepper({"w": parameter}, OptimizerSettings(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [0, -1])
def test_a_number_that_is_none_is_seen_in_whichever_micro_batch_it_is(place: int, load: Load) -> None:
    """Python's max(0.0, nan) is 0.0: a broken log-prob must not look like perfect agreement."""
    broken = replace(SAMPLES[0], sampler_logprobs=(math.nan,) * 3, old_logprobs=torch.full((3,), math.nan))
    whole = replace(SAMPLES[0], old_logprobs=torch.zeros(3))
    samples = [whole, whole, whole]
    samples[place] = broken
    learner = LocalLearner(load(), Objective(PRESETS["grpo"]), SETTINGS, micro_batch_tokens=1)
    stats = learner.forward_backward([TrainGroup((5, 6, 7), tuple(samples), 9)], DENOMINATORS)
    assert math.isnan(stats.sampler_gap_max)
    assert math.isnan(stats.sampler_gap_sum)
    assert math.isnan(stats.ratio_max_deviation)


def test_the_rate_warms_up_and_is_the_one_that_is_applied() -> None:
    parameter, stepper = one_parameter(warmup_steps=4)
    moved = []
    for _ in range(5):
        before = parameter.detach().clone()
        parameter.grad = torch.ones(2)
        _, rate = stepper.step()
        moved.append((rate, float((before - parameter.detach())[0])))
    assert [rate for rate, _ in moved] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])
    # Under a constant gradient AdamW moves by the rate itself.
    assert [by for _, by in moved] == pytest.approx([rate for rate, _ in moved], rel=1e-4)


def test_gradients_are_clipped_by_their_norm_which_is_returned_unclipped() -> None:
    """AdamW forgets a common scale, so two gradients of different norm tell clipped from unclipped."""
    clipped, stepper = one_parameter(max_grad_norm=1.0)
    by_hand, other = one_parameter(max_grad_norm=math.inf)
    for gradient, within in [((3.0, 4.0), (0.6, 0.8)), ((0.3, 0.4), (0.3, 0.4)), ((-6.0, 8.0), (-0.6, 0.8))]:
        clipped.grad, by_hand.grad = torch.tensor(gradient), torch.tensor(within)
        norm, _ = stepper.step()
        other.step()
        assert norm == pytest.approx(math.hypot(*gradient))
    torch.testing.assert_close(clipped, by_hand)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_neither_weights_nor_moments(bad: float) -> None:
    parameter, stepper = one_parameter()
    parameter.grad = torch.ones(2)
    stepper.step()
    weights, state = parameter.detach().clone(), {k: v.clone() for k, v in stepper.state().items()}
    parameter.grad = torch.tensor([1.0, bad])
    norm, _ = stepper.step()
    assert not math.isfinite(norm)
    assert parameter.grad is None
    assert torch.equal(parameter, weights)
    assert same({**stepper.state(), "steps": state["steps"]}, state)
    parameter.grad = torch.ones(2)
    assert math.isfinite(stepper.step()[0])
    assert not torch.equal(parameter, weights)


def test_gradients_are_gone_after_a_step_and_when_discarded(load: Load) -> None:
    policy = load()
    learner = learner_of(policy)
    learn(learner)
    assert all(p.grad is None for p in policy.trainable().values())
    learner.forward_backward(GROUPS, DENOMINATORS)
    learner.discard_gradients()
    assert all(p.grad is None for p in policy.trainable().values())


def test_the_weight_version_counts_steps(load: Load) -> None:
    learner = learner_of(load())
    assert learner.weight_version == 0
    learn(learner, 3)
    assert learner.weight_version == 3


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_from_saved_weights_and_state_training_goes_on_bit_exactly(load: Load, tmp_path: Path, lora_rank: int) -> None:
    settings = replace(SETTINGS, warmup_steps=3, schedule="cosine", weight_decay=0.1)
    policy = load(lora_rank=lora_rank)
    learner = learner_of(policy, settings)
    learn(learner, 2)
    policy.save(tmp_path)
    save_file(learner.state(), tmp_path / "state.safetensors")
    learn(learner, 2)

    resumed = load(lora_rank=lora_rank)
    resumed.load_weights(tmp_path)
    second = learner_of(resumed, settings)
    second.load_state(load_file(tmp_path / "state.safetensors"))
    assert second.weight_version == 2
    learn(second, 2)
    assert same(copied(resumed), copied(policy))
    assert same(second.state(), learner.state())


def test_a_state_of_no_steps_can_be_taken_back(load: Load) -> None:
    first, second = learner_of(load()), learner_of(load())
    second.load_state(first.state())
    assert second.weight_version == 0


def test_a_step_makes_the_better_likelier_and_the_worse_less_likely(load: Load) -> None:
    policy = load(spread=0.02)
    before = scored(policy)
    learn(learner_of(policy, replace(SETTINGS, learning_rate=1e-3)))
    gain = (scored(policy) - before).split([len(s.completion_ids) for g in GROUPS for s in g.samples])
    advantages = [s.advantage for g in GROUPS for s in g.samples]
    assert all(float(g.sum()) * a > 0 for g, a in zip(gain, advantages, strict=True))


def test_lora_trains_adapters_alone_and_the_head_is_frozen(load: Load) -> None:
    policy = load(lora_rank=4)
    assert policy.trainable()
    assert all("lora_" in name for name in policy.trainable())
    assert not policy.head.weight_VH.requires_grad
    before = copied(policy)
    learner = learner_of(policy)
    learner.forward_backward(GROUPS, DENOMINATORS)
    assert policy.head.weight_VH.grad is None
    learner.step()
    learn(learner)
    after = copied(policy)
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == set(policy.trainable())


def test_without_adapters_a_lora_policy_is_the_base_model(load: Load) -> None:
    base, policy = load(), load(lora_rank=4)
    assert torch.equal(scored(policy), scored(base))  # new adapters add nothing yet
    learn(learner_of(policy), 2)
    assert not torch.allclose(scored(policy), scored(base), atol=1e-3)
    trained = scored(policy)
    with policy.adapters_off():
        assert torch.equal(scored(policy), scored(base))
    assert torch.equal(scored(policy), trained)
    assert len(policy.trainable()) == len(load(lora_rank=4).trainable())


def test_the_reference_under_lora_is_the_base_model_and_no_copy(load: Load) -> None:
    base, policy = load(), load(lora_rank=4)
    reference = Reference(policy)
    learn(learner_of(policy), 2)
    assert torch.equal(referred(reference), scored(base))
    with torch.no_grad():
        policy.head.weight_VH.mul_(1.5)
    assert not torch.equal(referred(reference), scored(base))  # it reads the policy's own base weights


def test_the_reference_of_full_training_stays_while_the_policy_moves(load: Load) -> None:
    policy = load()
    at_first = scored(policy)
    reference = Reference(policy)
    learn(learner_of(policy), 2)
    assert torch.equal(referred(reference), at_first)
    assert not torch.allclose(scored(policy), at_first, atol=1e-3)


def test_the_reference_does_not_depend_on_how_groups_are_split(load: Load) -> None:
    reference = Reference(load())
    parts = torch.cat([t for group in reference.logprobs(GROUPS, 1.0, 5) for t in group])
    torch.testing.assert_close(parts, referred(reference), rtol=0, atol=1e-5)


def test_logprobs_of_the_learner_are_those_it_trains_on(load: Load) -> None:
    policy = load()
    learner = learner_of(policy)
    logprobs = learner.logprobs(GROUPS)
    assert [len(group) for group in logprobs] == [3, 2]
    assert not any(t.requires_grad for group in logprobs for t in group)
    torch.testing.assert_close(torch.cat([t for g in logprobs for t in g]), scored(policy), rtol=0, atol=1e-5)


def test_beta_without_reference_logprobs_is_refused(load: Load) -> None:
    with pytest.raises(ValueError, match="no reference log-probs"):
        learner_of(load(), beta=0.1).forward_backward(GROUPS, DENOMINATORS)


@pytest.mark.parametrize("field", ["old_logprobs", "ref_logprobs"])
def test_log_probs_that_only_some_samples_carry_are_refused(load: Load, field: str) -> None:
    """A single one would otherwise be taken for every sample of its micro-batch."""
    first = replace(SAMPLES[1], **{field: torch.zeros(4)})
    group = TrainGroup((5, 6, 7), (first, *SAMPLES[:1], SAMPLES[2]), 9)
    with pytest.raises(ValueError, match="1 of 3 samples"):
        learner_of(load(), beta=0.1).forward_backward([group], DENOMINATORS)


def test_bfloat16_is_finite_near_float32_and_keeps_float32_weights(load: Load) -> None:
    exact, policy = load(spread=0.02), load(spread=0.02, precision="bfloat16")
    torch.testing.assert_close(scored(policy), scored(exact), rtol=0, atol=0.02)
    assert scored(policy).dtype == torch.float32
    gradients = []
    for p in (exact, policy):
        learner_of(p).forward_backward(GROUPS, DENOMINATORS)
        gradients.append(torch.cat([w.grad.flatten() for w in p.trainable().values() if w.grad is not None]))
    assert all(g.dtype == torch.float32 and torch.isfinite(g).all() for g in gradients)
    assert (gradients[1] - gradients[0]).norm() / gradients[0].norm() < 0.02
    learn(learner_of(policy))
    assert {p.dtype for p in policy.module.parameters()} == {torch.float32}


def test_bfloat16_loses_no_small_update(load: Load) -> None:
    """Steps of 1e-6 are far below a bfloat16's last place: kept in float32, none of them is lost."""
    policy = load(precision="bfloat16")
    before = copied(policy)
    learn(learner_of(policy, replace(SETTINGS, learning_rate=1e-6)))
    after = copied(policy)
    assert all(not torch.equal(before[name], after[name]) for name in policy.trainable())


def test_bfloat16_with_lora_trains(load: Load) -> None:
    policy = load(lora_rank=4, precision="bfloat16")
    before = scored(policy)
    learn(learner_of(policy), 2)
    after = scored(policy)
    assert torch.isfinite(after).all()
    assert not torch.allclose(after, before, atol=1e-3)
