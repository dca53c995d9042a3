"""The critic: values where tokens are predicted, a gradient that no micro-batch changes, and its own weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.core.loss import Denominators
from assay.models.critic import Critic
from assay.models.learner import TrainGroup, TrainSample
from assay.models.local_learner import OptimizerSettings
from assay.models.policy import Policy

Load = Callable[..., Policy]
SETTINGS = OptimizerSettings(learning_rate=1e-2, total_steps=100)
COMPLETIONS = [(10, 11, 12, 2), (10, 11), (13, 2), (14, 15, 16, 17, 18)]
DENOMINATORS = Denominators(sequences=8, tokens=25, prompts=2, max_length=5)


def sample(ids: tuple[int, ...], earned: float) -> TrainSample:
    mask = tuple(t != 2 for t in range(len(ids)))
    length = len(ids)
    old, returns = torch.linspace(-0.5, 0.5, length), torch.full((length,), earned, dtype=torch.float64)
    return TrainSample(ids, mask, earned, (0.0,) * length, old_values=old, returns=returns)


GROUPS = [
    TrainGroup(prompt, tuple(sample(ids, float(i % 2)) for i, ids in enumerate(COMPLETIONS)), 11)
    for prompt in ((5, 6, 7), (5, 6, 8, 9))
]


def critic_of(policy: Policy, *, own: bool = True, tokens: int = 1000, clip: float | None = None) -> Critic:
    return Critic(policy, SETTINGS, own_backbone=own, value_clip=clip, micro_batch_tokens=tokens)


def with_head(critic: Critic) -> Critic:
    """A fresh head is 0, and then every backbone looks the same."""
    state = critic.state()
    generator = torch.Generator().manual_seed(0)
    state["weight/value_head.weight"] = torch.randn(1, 32, generator=generator)
    state["weight/value_head.bias"] = torch.tensor([0.25])
    critic.load_state(state)
    return critic


def gradients(critic: Critic) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in critic._parameters.items() if p.grad is not None}


@pytest.mark.parametrize("own", [True, False])
def test_the_value_of_a_token_is_read_where_it_is_predicted(own: bool, load: Load, plain: Callable[..., Any]) -> None:
    critic = with_head(critic_of(load(), own=own))
    head = critic.state()
    for group, values in zip(GROUPS, critic.values(GROUPS), strict=True):
        for s, values_T in zip(group.samples, values, strict=True):
            row = torch.tensor([group.prompt_ids + s.completion_ids])
            states = plain().model(input_ids=row).last_hidden_state[0, len(group.prompt_ids) - 1 : -1]
            expected = states @ head["weight/value_head.weight"][0] + head["weight/value_head.bias"]
            torch.testing.assert_close(values_T, expected, rtol=1e-4, atol=1e-5)


def test_a_fresh_critic_says_zero_everywhere(load: Load) -> None:
    assert all(v.eq(0).all() for group in critic_of(load()).values(GROUPS) for v in group)


def test_it_can_start_at_a_mean(load: Load) -> None:
    critic = critic_of(load())
    critic.start_at([1.0, 0.0, 0.5])
    assert all(v.eq(0.5).all() for group in critic.values(GROUPS) for v in group)
    critic.start_at([])
    assert critic.values(GROUPS[:1])[0][0][0] == 0.5
    assert critic.updates == 0


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("own", [True, False])
def test_loss_and_gradient_do_not_depend_on_micro_batches(own: bool, clip: float | None, load: Load) -> None:
    whole, parts = (with_head(critic_of(load(), own=own, tokens=n, clip=clip)) for n in (1000, 6))
    losses = [critic.forward_backward(GROUPS, DENOMINATORS) for critic in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0] > 0.01
    expected, given = gradients(whole), gradients(parts)
    assert expected.keys() == given.keys()
    norm = torch.cat([g.flatten() for g in expected.values()]).norm()
    gap = torch.cat([(expected[n] - given[n]).flatten() for n in expected]).norm()
    assert gap <= 1e-6 * norm


def test_the_loss_is_the_mean_over_own_tokens(load: Load) -> None:
    """Values are 0, so each of the 22 own tokens costs R^2 / 2: half of the samples have R = 1."""
    critic = critic_of(load())
    own = sum(sum(s.mask) for g in GROUPS for s in g.samples)
    ones = sum(sum(s.mask) for g in GROUPS for s in g.samples if s.advantage == 1)
    loss = critic.forward_backward(GROUPS, replace(DENOMINATORS, tokens=own))
    assert loss == pytest.approx(ones / own / 2)


def test_a_head_on_the_actor_leaves_the_policy_alone(load: Load) -> None:
    policy = load()
    critic = with_head(critic_of(policy, own=False))
    critic.forward_backward(GROUPS, DENOMINATORS)
    assert all(p.grad is None for p in policy.module.parameters())
    assert set(gradients(critic)) == {"value_head.weight", "value_head.bias"}


def test_an_own_backbone_is_a_copy_that_learns(load: Load) -> None:
    """Down to what cannot be known: 12 of the 22 own tokens follow a history that half of the samples share."""
    policy = load()
    before = {n: p.detach().clone() for n, p in policy.module.named_parameters()}
    critic = critic_of(policy)
    losses = []
    for _ in range(60):
        losses.append(critic.forward_backward(GROUPS, replace(DENOMINATORS, tokens=22)))
        critic.step()
    assert losses[-1] == pytest.approx(12 * 0.25 / 2 / 22, rel=1e-2)
    assert losses[0] > 0.2
    assert all(torch.equal(p, before[n]) for n, p in policy.module.named_parameters())


def test_a_separate_output_head_does_not_train(load: Load) -> None:
    assert not any("lm_head" in name for name in critic_of(load("qwen2"))._parameters)
    assert any("layers" in name for name in critic_of(load("qwen2"))._parameters)


def test_with_lora_the_critics_adapters_train_and_its_base_does_not(load: Load) -> None:
    names = set(critic_of(load(lora_rank=2))._parameters)
    assert all("lora" in name or name.startswith("value_head.") for name in names)
    assert any("lora" in name for name in names)


@pytest.mark.parametrize("own", [True, False])
def test_its_state_is_enough_to_go_on_exactly(own: bool, load: Load) -> None:
    def learnt(steps: int, critic: Critic) -> Critic:
        for _ in range(steps):
            critic.forward_backward(GROUPS, DENOMINATORS)
            critic.step()
        return critic

    whole, first = learnt(4, critic_of(load(), own=own)), learnt(2, critic_of(load(), own=own))
    again = critic_of(load(), own=own)
    again.load_state({name: t.clone() for name, t in first.state().items()})
    learnt(2, again)
    expected, given = whole.state(), again.state()
    assert expected.keys() == given.keys()
    assert all(torch.equal(expected[n], given[n]) for n in expected)


def test_samples_without_returns_are_named(load: Load) -> None:
    bare = [replace(g, samples=tuple(replace(s, returns=None) for s in g.samples)) for g in GROUPS]
    with pytest.raises(ValueError, match="0 of 8 samples carry values and returns"):
        critic_of(load()).forward_backward(bare, DENOMINATORS)
