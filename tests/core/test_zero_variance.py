"""The guard: a constant group is dead in every precision, and its advantages are exactly 0."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.core.advantage import ADVANTAGES
from assay.core.zero_variance import is_zero_variance

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
NAN = float("nan")
INF = float("inf")
ESTIMATORS = pytest.mark.parametrize("estimator", ADVANTAGES)

deterministic = settings(deadline=None, derandomize=True, database=None, max_examples=200)


def group(*rewards: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor([rewards], dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("G", [2, 3, 4, 7, 8, 15, 16, 31, 33, 63, 64])
def test_constant_groups_of_a_dense_grid_are_dead_and_get_exactly_zero(dtype: torch.dtype, G: int) -> None:
    values = torch.cat([torch.arange(-1000, 1001, dtype=torch.float64) / 100, torch.tensor([1e6, -1e6])])
    rewards_PG = values.to(dtype).unsqueeze(1).repeat(1, G)
    assert is_zero_variance(rewards_PG).all()
    for name, estimator in ADVANTAGES.items():
        assert torch.count_nonzero(estimator(rewards_PG)) == 0, name


@deterministic
@given(value=st.floats(-10, 10) | st.just(1e6), G=st.integers(2, 64), dtype=st.sampled_from(DTYPES))
def test_any_constant_group_is_dead_and_gets_exactly_zero(value: float, G: int, dtype: torch.dtype) -> None:
    rewards_PG = torch.full((1, G), value, dtype=dtype)
    assert is_zero_variance(rewards_PG).item()
    for name, estimator in ADVANTAGES.items():
        assert torch.count_nonzero(estimator(rewards_PG)) == 0, name


def test_the_rule_on_sigma_in_float32_would_let_a_constant_group_through() -> None:
    """Eight rewards of 0.7 have a float32 sigma of 6e-8 > 1e-8: the case that the guard exists for."""
    rewards_PG = torch.full((1, 8), 0.7, dtype=torch.float32)
    mean = rewards_PG.mean()
    sigma = (rewards_PG - mean).square().mean().sqrt().item()
    assert sigma > 1e-8
    assert is_zero_variance(rewards_PG).item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding_of_a_sum_is_no_signal(dtype: torch.dtype) -> None:
    def number(x: float) -> torch.Tensor:
        return torch.tensor(x, dtype=dtype)

    total = number(0.1) + number(0.2)
    assert is_zero_variance(torch.stack([total, number(0.3), total, number(0.3)]).unsqueeze(0)).item()
    tenfold = sum((number(0.1) for _ in range(10)), start=number(0.0))
    if dtype != torch.bfloat16:  # ten roundings of 2^-9 add up to more than four units in the last place
        assert is_zero_variance(torch.stack([tenfold, number(1.0)]).unsqueeze(0)).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_one_in_a_million_is_alive(dtype: torch.dtype) -> None:
    assert not is_zero_variance(group(1e6, 1e6 + 1, dtype=dtype)).item()


@pytest.mark.parametrize(
    ("rewards", "dtype", "dead"),
    [
        ((1.0, 1.0 + 1e-7), torch.float64, False),
        ((1.0, 1.0 + 7e-9), torch.float64, True),  # below the absolute tolerance of 1e-8
        ((0.0, 1e-8), torch.float64, True),
        ((0.0, 2e-8), torch.float64, False),
        ((0.0, 2e-8), torch.float32, False),
        ((1.0, 1.0 + 2**-23), torch.float32, True),  # one unit in the last place
        ((1.0, 1.0 + 4 * 2**-23), torch.float32, True),
        ((1.0, 1.0 + 6 * 2**-23), torch.float32, False),
        ((1e6, 1e6 + 4 * 2**-33), torch.float64, True),  # an ulp of 1e6 is 2^-33
        ((1.0, *(0.0,) * 63), torch.bfloat16, False),
        ((1.0, 0.96875), torch.bfloat16, True),
        ((-1.0, -0.96875), torch.bfloat16, True),  # the larger magnitude counts, whatever the sign
        ((0.0, 0.0), torch.float64, True),
        ((0.0, -0.0), torch.float32, True),
        ((-1.0, -2.0), torch.float32, False),
        ((True, False), torch.bool, False),
        ((True, True), torch.bool, True),
    ],
)
def test_edges_of_the_tolerance(rewards: tuple[float, ...], dtype: torch.dtype, dead: bool) -> None:
    assert is_zero_variance(group(*rewards, dtype=dtype)).item() is dead


@pytest.mark.parametrize("rewards", [(NAN, NAN), (1.0, NAN), (NAN, NAN, 0.5, NAN)])
@ESTIMATORS
def test_fewer_than_two_scorable_is_dead(estimator: str, rewards: tuple[float, ...]) -> None:
    assert is_zero_variance(group(*rewards)).item()
    assert torch.count_nonzero(ADVANTAGES[estimator](group(*rewards))) == 0


def test_a_group_of_one_is_dead() -> None:
    assert is_zero_variance(group(1.0)).item()


def test_unscorable_members_are_left_out() -> None:
    assert not is_zero_variance(group(1.0, NAN, 0.0, 1.0)).item()
    assert is_zero_variance(group(0.7, NAN, 0.7, 0.7, dtype=torch.float32)).item()


@ESTIMATORS
def test_unscorable_completion_gets_zero_and_the_others_are_as_if_without_it(estimator: str) -> None:
    """A3 (TRL PR 5773): one NaN neither poisons the group nor counts as a 0."""
    advantages = ADVANTAGES[estimator](group(1.0, NAN, 0.0, 1.0))
    others = ADVANTAGES[estimator](group(1.0, 0.0, 1.0))
    assert advantages[0, 1].item() == 0.0
    torch.testing.assert_close(advantages[:, [0, 2, 3]], others, rtol=0, atol=1e-15)


@pytest.mark.parametrize("bad", [INF, -INF])
@ESTIMATORS
def test_infinite_rewards_are_refused(estimator: str, bad: float) -> None:
    with pytest.raises(ValueError, match="infinite"):
        is_zero_variance(group(0.0, bad))
    with pytest.raises(ValueError, match="infinite"):
        ADVANTAGES[estimator](group(0.0, bad))


@pytest.mark.parametrize("shape", [(4,), (1, 2, 4)])
def test_other_than_two_axes_is_refused_with_the_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"\({shape[0]},"):
        is_zero_variance(torch.zeros(shape))


@deterministic
@given(data=st.data(), G=st.integers(2, 16), dtype=st.sampled_from(DTYPES))
def test_order_within_a_group_does_not_matter(data: st.DataObject, G: int, dtype: torch.dtype) -> None:
    reward = st.sampled_from([0.0, 0.1, 0.1 + 2**-27, 0.7, 1.0, NAN]) | st.floats(-10, 10)
    rewards_PG = group(*data.draw(st.lists(reward, min_size=G, max_size=G)), dtype=dtype)
    order = data.draw(st.permutations(range(G)))
    assert is_zero_variance(rewards_PG).item() == is_zero_variance(rewards_PG[:, order]).item()
    for estimator in ADVANTAGES.values():
        moved = estimator(rewards_PG)[:, order]
        torch.testing.assert_close(estimator(rewards_PG[:, order]), moved, rtol=1e-9, atol=1e-12)


@ESTIMATORS
def test_guard_and_estimators_judge_alike_and_groups_do_not_see_each_other(estimator: str) -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randint(0, 3, (400, 8), generator=generator).double()
    noise = torch.rand(400, 8, generator=generator, dtype=torch.float64)
    scale = torch.logspace(-12, -4, 400, dtype=torch.float64).unsqueeze(1)
    rewards_PG = torch.cat([base, base[:, :1] + noise * scale, base[:, :1].repeat(1, 8)])
    dead_P = is_zero_variance(rewards_PG)
    assert 400 < int(dead_P.sum()) < 800  # both kinds are there
    advantages_PG = ADVANTAGES[estimator](rewards_PG)
    assert torch.equal((advantages_PG == 0).all(dim=1), dead_P)
    if estimator == "batch_scaled":  # its sigma is of all groups, by definition
        return
    one_by_one = torch.cat([ADVANTAGES[estimator](row.unsqueeze(0)) for row in rewards_PG])
    assert torch.equal(one_by_one, advantages_PG)
