"""Laws that every entry of ADVANTAGES, LOSSES and KLS keeps, the ones that are added later included."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.core.advantage import ADVANTAGES, group_relative
from assay.core.kl import KLS, k3
from assay.core.loss import LOSSES

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
NAN = float("nan")

few = settings(derandomize=True, max_examples=40, deadline=None)
estimators = pytest.mark.parametrize("estimator", ADVANTAGES)
losses = pytest.mark.parametrize("loss", LOSSES)
kls = pytest.mark.parametrize("kl", KLS)

sizes = st.integers(2, 64)
# Multiples of 1/64 and small integers: sums of them are exact, so a law needs no allowance for rounding inputs.
grid = st.integers(-640, 640).map(lambda k: k / 64)
groups = st.lists(grid, min_size=2, max_size=64)
logprobs = st.lists(st.floats(-8, 0, width=32), min_size=1, max_size=16)


def advantages(estimator: str, rewards: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    return ADVANTAGES[estimator](torch.tensor([rewards], dtype=dtype))[0]


@estimators
@few
@given(groups, st.integers(-(10**6), 10**6))
def test_a_shift_of_all_rewards_changes_no_advantage(estimator: str, rewards: list[float], shift: int) -> None:
    shifted = advantages(estimator, [r + shift for r in rewards])
    torch.testing.assert_close(shifted, advantages(estimator, rewards), rtol=1e-7, atol=1e-7)


@estimators
@few
@given(groups, st.randoms(use_true_random=False))
def test_advantages_follow_their_rewards_when_reordered(estimator: str, rewards: list[float], random: Random) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)
    reordered = advantages(estimator, [rewards[i] for i in order])
    torch.testing.assert_close(reordered, advantages(estimator, rewards)[order], rtol=1e-9, atol=1e-9)


@estimators
@few
@given(st.one_of(st.floats(-10, 10), st.just(1e6)), sizes, st.sampled_from(DTYPES))
def test_identical_rewards_give_exactly_zero(estimator: str, value: float, G: int, dtype: torch.dtype) -> None:
    assert not advantages(estimator, [value] * G, dtype).any()


@estimators
@few
@given(groups, st.data())
def test_an_unscorable_member_gets_zero_and_leaves_the_others_alone(
    estimator: str, rewards: list[float], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(rewards)))
    with_nan = advantages(estimator, [*rewards[:place], NAN, *rewards[place:]])
    assert with_nan[place] == 0
    others = torch.cat([with_nan[:place], with_nan[place + 1 :]])
    torch.testing.assert_close(others, advantages(estimator, rewards), rtol=1e-9, atol=1e-9)


@estimators
@few
@given(groups)
def test_more_reward_is_never_less_advantage_and_the_group_sums_to_zero(estimator: str, rewards: list[float]) -> None:
    by_reward = advantages(estimator, sorted(rewards))
    assert (by_reward.diff() >= 0).all()
    assert abs(by_reward.sum().item()) < 1e-7


@few
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=64), st.sampled_from(DTYPES))
def test_group_relative_is_bounded_by_the_size_of_the_group(rewards: list[float], dtype: torch.dtype) -> None:
    bound = math.sqrt(len(rewards) - 1) * (1 + 1e-9)
    assert (group_relative(torch.tensor([rewards], dtype=dtype)).abs() <= bound).all()


@losses
@few
@given(logprobs, st.data())
def test_without_advantage_there_is_no_policy_gradient(loss: str, old: list[float], data: st.DataObject) -> None:
    new = torch.tensor([data.draw(st.floats(-8, 0, width=32)) for _ in old], requires_grad=True)
    value = LOSSES[loss].tokens(new, torch.tensor(old), torch.zeros(len(old)))
    value.sum().backward()
    assert not value.any()
    assert new.grad is not None
    assert not new.grad.any()


@losses
@few
@given(logprobs, st.floats(-3, 3, width=32))
def test_at_the_old_policy_the_gradient_is_minus_the_advantage(loss: str, old: list[float], advantage: float) -> None:
    """On policy every one of them is the plain policy gradient."""
    old_T = torch.tensor(old)
    new_T = old_T.clone().requires_grad_()
    LOSSES[loss].tokens(new_T, old_T, torch.full_like(old_T, advantage)).sum().backward()
    assert new_T.grad is not None
    assert torch.equal(new_T.grad, torch.full_like(old_T, -advantage))


@losses
@few
@given(logprobs)
def test_at_the_old_policy_nothing_is_clipped(loss: str, old: list[float]) -> None:
    old_T = torch.tensor(old)
    for advantage in (-1.0, 1.0):
        assert not LOSSES[loss].clipped(old_T, old_T, torch.full_like(old_T, advantage)).any()


@losses
@few
@given(logprobs, st.floats(-3, 3, width=32))
def test_at_the_old_policy_a_step_raises_the_better_and_lowers_the_worse(
    loss: str, old: list[float], advantage: float
) -> None:
    new = torch.tensor(old, requires_grad=True)
    LOSSES[loss].tokens(new, torch.tensor(old), torch.full((len(old),), advantage)).sum().backward()
    assert new.grad is not None
    assert torch.equal(new.grad.sign(), torch.full((len(old),), -advantage).sign())


@few
@given(st.floats(-50, 50, width=32), st.floats(-50, 50, width=32), st.sampled_from(DTYPES))
def test_k3_is_never_negative(a: float, b: float, dtype: torch.dtype) -> None:
    assert k3(torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)) >= 0


@kls
@few
@given(logprobs, st.sampled_from(DTYPES))
def test_where_the_policies_agree_the_kl_is_zero(kl: str, values: list[float], dtype: torch.dtype) -> None:
    logprobs_T = torch.tensor(values, dtype=dtype)
    assert not KLS[kl](logprobs_T, logprobs_T.clone()).any()


@kls
@few
@given(st.lists(st.floats(-2, 2), min_size=2, max_size=6), st.data())
def test_expected_kl_under_the_policy_is_not_negative(kl: str, logits: list[float], data: st.DataObject) -> None:
    policy_V = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), dim=-1)
    other = [data.draw(st.floats(-2, 2)) for _ in logits]
    reference_V = torch.log_softmax(torch.tensor(other, dtype=torch.float64), dim=-1)
    assert (policy_V.exp() * KLS[kl](policy_V, reference_V)).sum() >= -1e-12
