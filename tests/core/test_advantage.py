"""Advantage estimators: numbers worked by hand and laws; the peers: test_oracle_count."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.core.advantage import ADVANTAGES, gae, group_centred, group_relative, leave_one_out, whiten
from assay.core.zero_variance import is_zero_variance

Cases = Callable[..., list[Any]]
NAN = float("nan")


def rewards(*groups: list[float]) -> Tensor:
    return torch.tensor(groups, dtype=torch.float64)


def exactly(actual: Tensor, expected: list[float], atol: float = 1e-7) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=atol)


def test_worked_numbers_of_the_group_relative_advantage() -> None:
    exactly(group_relative(rewards([1, 0, 0, 1]), eps=0)[0], [1, -1, -1, 1])
    exactly(group_relative(rewards([1, 0, 0, 1]), eps=0, ddof=1)[0], [0.8660254, -0.8660254, -0.8660254, 0.8660254])
    exactly(group_relative(rewards([1, 0, 0, 0]), eps=0)[0], [1.7320508, -0.5773503, -0.5773503, -0.5773503])
    exactly(group_relative(rewards([1, *[0] * 7]), eps=0)[0], [math.sqrt(7), *[-1 / math.sqrt(7)] * 7])
    exactly(group_relative(rewards([1, *[0] * 7]), eps=0, ddof=1)[0], [2.4748737, *[-0.3535534] * 7])


def test_eps_is_added_to_sigma() -> None:
    exactly(group_relative(rewards([1, 0, 0, 1]), eps=0.5)[0], [0.5, -0.5, -0.5, 0.5], atol=1e-15)


def test_worked_numbers_without_sigma() -> None:
    exactly(group_centred(rewards([1, 0, 0, 0]))[0], [0.75, -0.25, -0.25, -0.25], atol=1e-15)
    exactly(leave_one_out(rewards([1, 0, 0, 0]))[0], [1, -1 / 3, -1 / 3, -1 / 3], atol=1e-15)
    exactly(leave_one_out(rewards([3, 1]))[0], [2, -2], atol=1e-15)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="ddof"):
        group_relative(rewards([1, 0]), ddof=2)
    with pytest.raises(ValueError, match="eps"):
        group_relative(rewards([1, 0]), eps=-1e-6)


@pytest.mark.parametrize("estimator", ADVANTAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64], ids=str)
def test_advantages_are_float64_whatever_the_rewards_came_in(estimator: str, dtype: torch.dtype) -> None:
    rewards_PG = rewards([1, 0, 0, 1]).to(dtype)
    before = rewards_PG.clone()
    assert ADVANTAGES[estimator](rewards_PG).dtype == torch.float64
    assert torch.equal(rewards_PG, before)


def test_a3_one_unscorable_completion() -> None:
    """TRL PR 5773: [1, NaN, 0, 1] is the group [1, 0, 1], whose mean is 2/3 and sigma sqrt(2)/3."""
    exactly(group_relative(rewards([1, NAN, 0, 1]), eps=0)[0], [0.7071068, 0, -1.4142136, 0.7071068])
    exactly(leave_one_out(rewards([1, NAN, 0, 1]))[0], [0.5, 0, -1, 0.5], atol=1e-15)


@pytest.mark.parametrize("estimator", ADVANTAGES)
def test_a5_mean_and_sigma_are_of_the_group_not_of_the_batch(estimator: str) -> None:
    """grpo-flat issue 2: a shift between groups changes nothing."""
    first, second = ADVANTAGES[estimator](rewards([1, 1, 0, 0], [10, 10, 9, 9]))
    assert torch.count_nonzero(first) == 4
    torch.testing.assert_close(first, second, rtol=0, atol=1e-12)


@pytest.mark.parametrize("estimator", ADVANTAGES)
def test_a6_advantages_of_each_group_sum_to_zero(estimator: str) -> None:
    """gem PR 113: true for each group on its own, so no second normalisation is hidden anywhere."""
    generator = torch.Generator().manual_seed(1)
    advantages_PG = ADVANTAGES[estimator](torch.rand(50, 7, generator=generator, dtype=torch.float64) * 4 - 2)
    assert advantages_PG.abs().min() > 0
    torch.testing.assert_close(advantages_PG.sum(dim=1), torch.zeros(50, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("estimator", ADVANTAGES)
def test_a16_the_better_one_is_positive_when_all_rewards_are_negative(estimator: str) -> None:
    """TRL PR 5026: dividing by the mean would flip the signs."""
    better, worse = ADVANTAGES[estimator](rewards([-1, -2]))[0].tolist()
    assert better > 0 > worse


@settings(deadline=None, derandomize=True, database=None)
@given(group=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=32))
def test_population_sigma_bounds_the_advantage(group: list[float]) -> None:
    """|A| <= sqrt(G - 1), reached when one reward differs from all the others."""
    assert group_relative(rewards(group)).abs().max().item() <= math.sqrt(len(group) - 1) * (1 + 1e-9)


@settings(deadline=None, derandomize=True, database=None)
@given(
    group=st.lists(st.integers(-5, 5), min_size=2, max_size=16), scale=st.floats(0.1, 100), shift=st.floats(-100, 100)
)
def test_group_relative_ignores_scale_and_shift(group: list[int], scale: float, shift: float) -> None:
    plain = group_relative(rewards(group), eps=0)
    moved = group_relative(rewards(group) * scale + shift, eps=0)
    torch.testing.assert_close(moved, plain, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("estimator", ADVANTAGES)
def test_the_guard_changes_the_groups_without_signal_alone(
    oracle_cases: Cases, estimator: str, dtype: torch.dtype
) -> None:
    """all 0, 1, .1, .35, .6 and .5 + k 1e-9; without the guard they are the peers' (test_oracle_count)."""
    (case,) = oracle_cases("advantages", id="verl_grpo_std_float64")
    rewards_PG = case.inputs["rewards"].to(dtype)
    dead = is_zero_variance(rewards_PG)
    assert dead.tolist() == [False, False, False, True, True, True, True, True, False, False, False, True]
    guarded, unguarded = (ADVANTAGES[estimator](rewards_PG, guard=guard) for guard in (True, False))
    assert torch.equal(guarded[~dead], unguarded[~dead])
    assert torch.count_nonzero(guarded[dead]) == 0


def test_leave_one_out_needs_no_guard() -> None:
    assert leave_one_out(rewards([1, 1]), guard=False).tolist() == [[0.0, 0.0]]


def test_whitening_of_equal_values_is_exactly_zero() -> None:
    mask = torch.tensor([[1, 1, 0]])
    for value in (0.1 + 0.2, 0.7, 1e6):
        assert whiten(torch.full((1, 3), value), mask).tolist() == [[0.0, 0.0, 0.0]]


# Generalized advantage estimation


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


def test_gae_worked_numbers() -> None:
    advantages, returns = gae(row(0, 0, 1), row(0.5, 0.5, 0.5), row(1, 1, 1), gamma=1, lam=0.95)
    exactly(advantages[0], [0.45125, 0.475, 0.5], atol=1e-15)
    exactly(returns[0], [0.95125, 0.975, 1.0], atol=1e-15)
    advantages, returns = gae(row(0, 0, 1), row(0.5, 0.6, 0.7), row(1, 1, 1), gamma=0.9, lam=0.8)
    exactly(advantages[0], [0.21712, 0.246, 0.3], atol=1e-15)
    exactly(returns[0], [0.71712, 0.846, 1.0], atol=1e-15)


def test_a13_gae_does_not_bootstrap_from_a_masked_value() -> None:
    """ROLL PR 447: 5.7, 6.0 if V = 100 of the padding is read."""
    advantages, returns = gae(row(0, 1, 0), row(0, 0, 100), row(1, 1, 0), gamma=1, lam=0.95)
    exactly(advantages[0], [0.95, 1, 0], atol=1e-15)
    exactly(returns[0], [0.95, 1, 0], atol=1e-15)


def test_gae_bootstraps_only_from_what_the_caller_gives() -> None:
    bootstrap_B = torch.tensor([2.0, 0.0], dtype=torch.float64)
    values = torch.full((2, 2), 0.5, dtype=torch.float64)
    mask = torch.tensor([[1, 0], [1, 0]])
    advantages, _ = gae(torch.zeros_like(values), values, mask, gamma=0.9, lam=0.8, bootstrap_B=bootstrap_B)
    exactly(advantages[:, 0], [0.9 * 2 - 0.5, -0.5], atol=1e-15)


def random_rows(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards, values and masks with holes in the middle and padding at the end; some rows empty or of one token."""
    generator = torch.Generator().manual_seed(seed)
    rewards_BT, values_BT = torch.randn(2, 20, 9, generator=generator, dtype=torch.float64)
    mask_BT = torch.rand(20, 9, generator=generator) < 0.7
    mask_BT[0] = False
    mask_BT[1] = torch.arange(9) == 4
    return rewards_BT, values_BT, mask_BT


def own(tensor_BT: Tensor, mask_BT: Tensor) -> list[list[float]]:
    """Each row's own tokens as a plain list."""
    return [tensor[mask].tolist() for tensor, mask in zip(tensor_BT, mask_BT, strict=True)]


def test_gae_law_lambda_one_is_the_discounted_return_less_the_value() -> None:
    rewards_BT, values_BT, mask_BT = random_rows(2)
    advantages, returns = gae(rewards_BT, values_BT, mask_BT, gamma=0.9, lam=1.0)
    rows = zip(*(own(x, mask_BT) for x in (rewards_BT, values_BT, advantages, returns)), strict=True)
    for rs, vs, as_, gs in rows:
        for t in range(len(rs)):
            discounted = math.fsum(0.9**k * r for k, r in enumerate(rs[t:]))
            assert as_[t] == pytest.approx(discounted - vs[t], abs=1e-12)
            assert gs[t] == pytest.approx(discounted, abs=1e-12)


def test_gae_law_lambda_zero_is_delta() -> None:
    rewards_BT, values_BT, mask_BT = random_rows(3)
    advantages, _ = gae(rewards_BT, values_BT, mask_BT, gamma=0.9, lam=0.0)
    for rs, vs, as_ in zip(*(own(x, mask_BT) for x in (rewards_BT, values_BT, advantages)), strict=True):
        for t, advantage in enumerate(as_):
            next_value = vs[t + 1] if t + 1 < len(vs) else 0.0
            assert advantage == pytest.approx(rs[t] + 0.9 * next_value - vs[t], abs=1e-12)


def test_gae_law_without_discount_and_value_is_the_sum_of_rewards_to_come() -> None:
    rewards_BT, values_BT, mask_BT = random_rows(4)
    advantages, _ = gae(rewards_BT, torch.zeros_like(values_BT), mask_BT, gamma=1.0, lam=1.0)
    for rs, as_ in zip(own(rewards_BT, mask_BT), own(advantages, mask_BT), strict=True):
        for t, advantage in enumerate(as_):
            assert advantage == pytest.approx(math.fsum(rs[t:]), abs=1e-12)


def test_gae_never_reads_masked_positions() -> None:
    rewards_BT, values_BT, mask_BT = random_rows(5)
    clean = gae(rewards_BT, values_BT, mask_BT, gamma=0.99, lam=0.95)
    dirty = gae(
        rewards_BT.masked_fill(~mask_BT, NAN),
        values_BT.masked_fill(~mask_BT, NAN),
        mask_BT.double(),
        gamma=0.99,
        lam=0.95,
    )
    for a, b in zip(clean, dirty, strict=True):
        assert torch.equal(a, b)
        assert torch.count_nonzero(b[~mask_BT]) == 0
