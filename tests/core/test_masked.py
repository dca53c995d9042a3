"""Masked reductions: what is masked out is never read, and nothing has no mean."""

from __future__ import annotations

import math

import pytest
import torch

from assay.core.masked import masked_mean, masked_sum, masked_var

NAN, INF = float("nan"), float("inf")
VALUES = torch.tensor([[1.0, NAN, 3.0, INF], [-INF, 2.0, NAN, 8.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1]])


@pytest.mark.parametrize("mask", [MASK, MASK.bool(), MASK.double()], ids=["int", "bool", "float"])
def test_masked_nan_and_infinity_are_not_read(mask: torch.Tensor) -> None:
    assert masked_sum(VALUES, mask).item() == 14.0
    assert masked_mean(VALUES, mask).item() == 3.5
    assert masked_sum(VALUES, mask, dim=1).tolist() == [4.0, 10.0]
    assert masked_sum(VALUES, mask, dim=0).tolist() == [1.0, 2.0, 3.0, 8.0]
    assert masked_mean(VALUES, mask, dim=1).tolist() == [2.0, 5.0]
    assert masked_var(VALUES, mask, dim=1).tolist() == [1.0, 9.0]


def test_what_is_not_masked_is_read() -> None:
    assert math.isnan(masked_sum(VALUES, torch.ones_like(MASK)).item())


def test_variance_divides_by_count_less_ddof() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, NAN], dtype=torch.float64)
    mask = torch.tensor([1, 1, 1, 0])
    assert masked_var(values, mask).item() == pytest.approx(14 / 9, abs=1e-15)
    assert masked_var(values, mask, ddof=1).item() == pytest.approx(7 / 3, abs=1e-15)


def test_variance_is_two_pass() -> None:
    """E[x^2] - E[x]^2 in float32 would lose everything at 1e4."""
    values = torch.tensor([1e4, 1e4 + 1, 1e4 + 2], dtype=torch.float32)
    everything = torch.ones(3)
    assert masked_var(values, everything).item() == pytest.approx(2 / 3, rel=1e-6)
    assert (values.square().mean() - values.mean().square()).item() != pytest.approx(2 / 3, rel=0.1)


@pytest.mark.parametrize("ddof", [0, 1])
def test_over_nothing_the_sum_is_zero_and_mean_and_variance_are_nan(ddof: int) -> None:
    values, nothing = torch.full((2, 3), INF), torch.zeros(2, 3)
    assert masked_sum(values, nothing).item() == 0.0
    assert masked_sum(values, nothing, dim=1).tolist() == [0.0, 0.0]
    assert torch.isnan(masked_mean(values, nothing, dim=1)).all()
    assert torch.isnan(masked_var(values, nothing, dim=1, ddof=ddof)).all()
    assert torch.isnan(masked_var(values, nothing, ddof=ddof))


def test_sample_variance_of_one_is_nan_and_population_variance_zero() -> None:
    values, one = torch.tensor([5.0, NAN]), torch.tensor([1, 0])
    assert masked_var(values, one).item() == 0.0
    assert math.isnan(masked_var(values, one, ddof=1).item())


def test_gradient_is_zero_where_masked() -> None:
    values = torch.tensor([1.0, NAN, 3.0], requires_grad=True)
    (grad,) = torch.autograd.grad(masked_mean(values, torch.tensor([1, 0, 1])), values)
    assert grad.tolist() == [0.5, 0.0, 0.5]
