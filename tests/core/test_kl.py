"""KL estimators: values by hand, bounds in low precision, gradients. Expectations: test_kl_expectation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.core.kl import KLS, k1, k2, k3, k3_is_linear

Cases = Callable[..., list[Any]]


def at(*x: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """(logprobs, ref_logprobs) with logp_ref - logp = x, where logp carries the gradient."""
    logprobs = torch.zeros(len(x), dtype=dtype, requires_grad=True)
    return logprobs, torch.tensor(x, dtype=dtype)


def gradient(estimator: Callable[[Tensor, Tensor], Tensor], *x: float, dtype: torch.dtype = torch.float64) -> Tensor:
    logprobs, ref = at(*x, dtype=dtype)
    (grad,) = torch.autograd.grad(estimator(logprobs, ref).sum(), logprobs)
    return grad


def test_worked_numbers() -> None:
    logprobs, ref = at(math.log(2), math.log(0.5), 0.0)
    expected = torch.tensor([0.3068528, 0.1931472, 0.0], dtype=torch.float64)
    torch.testing.assert_close(k3(logprobs, ref), expected, rtol=0, atol=1e-7)
    logprobs, ref = at(2.0, -3.0)
    assert k1(logprobs, ref).tolist() == [-2.0, 3.0]
    assert k2(logprobs, ref).tolist() == [2.0, 4.5]


def test_k1_is_positive_where_the_policy_is_surer_than_the_reference() -> None:
    assert k1(torch.tensor([-1.0]), torch.tensor([-3.0])).item() == 2.0


def test_k3_is_the_peers_up_to_where_they_bound_it(oracle_cases: Cases) -> None:
    """Liger's (unbounded) up to x = 10, verl's up to a k3 of 10; beyond, ours goes on linearly."""
    (liger,), (verl,) = oracle_cases("kl", id="liger_k3_wide"), oracle_cases("kl", id="verl_k3_wide")
    x = liger.inputs["ref_log_prob"] - liger.inputs["log_prob"]
    for case, inside, count in ((liger, x <= 10, 7), (verl, torch.expm1(x) - x <= 10, 5)):
        assert int(inside.sum()) == count
        logprobs = case.inputs["log_prob"].clone().requires_grad_()
        value = k3(logprobs, case.inputs["ref_log_prob"])
        (grad,) = torch.autograd.grad(value.sum(), logprobs)
        for ours, theirs in ((value.detach(), case.outputs["kl"]), (grad, case.outputs["grad_log_prob"])):
            torch.testing.assert_close(ours[inside], theirs[inside], rtol=1e-12, atol=1e-10)
            assert ((ours - theirs)[~inside].abs() > 0.1).all()


def float32_grid() -> Tensor:
    magnitudes = torch.logspace(-12, 2, 20_001, dtype=torch.float64).float()
    return torch.cat([-magnitudes, torch.zeros(1), magnitudes])


def test_k3_is_never_negative_in_float32_where_the_textbook_form_is() -> None:
    x = float32_grid()
    assert (torch.exp(x) - x - 1 < 0).any()
    value = k3(torch.zeros_like(x), x)
    assert value.dtype == torch.float32
    assert (value >= 0).all()
    exact = (torch.expm1(x.double()) - x.double())[(x.abs() > 1e-3) & (x < 10)]
    torch.testing.assert_close(value[(x.abs() > 1e-3) & (x < 10)].double(), exact, rtol=5e-4, atol=0)


def test_k3_of_bfloat16_is_never_negative_and_upcast() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs = (-5 * torch.rand(20_000, generator=generator)).bfloat16()
    near = (logprobs.float() + 0.01 * torch.randn(20_000, generator=generator)).bfloat16()
    x = near - logprobs
    assert (torch.exp(x) - x - 1 < 0).any()  # the form in bfloat16 would be
    for estimator in KLS.values():
        value = estimator(logprobs, near)
        assert value.dtype == torch.float32
        assert torch.equal(value, estimator(logprobs.float(), near.float()))  # upcast before the difference
        assert torch.count_nonzero(estimator(logprobs, logprobs)) == 0  # A11: exactly 0 at equality
    assert (k3(logprobs, near) >= 0).all()
    assert (k3(logprobs, near)[logprobs != near] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_a11_a_large_log_ratio_stays_finite_and_pulls_back(dtype: torch.dtype) -> None:
    """OpenRLHF issue 525: logp -60 against 0; exp(60) is 1e26."""
    logprobs = torch.tensor([-60.0], dtype=dtype, requires_grad=True)
    ref = torch.zeros(1, dtype=dtype)
    value = k3(logprobs, ref)
    (grad,) = torch.autograd.grad(value.sum(), logprobs)
    slope = math.expm1(10)
    assert value.item() == pytest.approx(math.expm1(10) - 10 + slope * 50, rel=1e-6)
    assert grad.item() == pytest.approx(-slope, rel=1e-6 if dtype != torch.bfloat16 else 1e-2)
    assert k3_is_linear(logprobs, ref).tolist() == [True]


def test_k3_is_finite_at_ten_thousand() -> None:
    for dtype in (torch.float32, torch.float64):
        logprobs, ref = at(1e4, -1e4, dtype=dtype)
        assert torch.isfinite(k3(logprobs, ref)).all()
        grad = gradient(k3, 1e4, -1e4, dtype=dtype)
        torch.testing.assert_close(grad, torch.tensor([-math.expm1(10), 1.0], dtype=dtype))


def test_k3_value_and_gradient_are_continuous_where_it_turns_linear() -> None:
    step = 1e-9
    logprobs, ref = at(10 - step, 10.0, 10 + step)
    below, turn, above = k3(logprobs, ref).tolist()
    slope = math.expm1(10)
    assert turn - below == pytest.approx(slope * step, rel=1e-3)
    assert above - turn == pytest.approx(slope * step, rel=1e-3)
    low, middle, high = gradient(k3, 10 - step, 10.0, 10 + step).tolist()
    assert middle == pytest.approx(-slope, rel=1e-12)
    assert low == pytest.approx(middle, rel=1e-8)
    assert high == middle
    assert k3_is_linear(*at(10 - step, 10.0, 10 + step)).tolist() == [False, False, True]


@pytest.mark.parametrize("name", KLS)
def test_gradients_against_finite_differences(name: str) -> None:
    points = [-20.0, -5.0, -1.0, -0.1, -1e-3, 0.0, 1e-3, 0.1, 1.0, 5.0, 9.9, 10.5, 15.0]
    analytic = gradient(KLS[name], *points)
    step = 1e-5
    _, ref = at(*points)
    up, down = torch.full_like(ref, step), torch.full_like(ref, -step)
    numeric = (KLS[name](up, ref) - KLS[name](down, ref)) / (2 * step)
    torch.testing.assert_close(analytic, numeric, rtol=1e-7, atol=1e-8)


def test_k3_gradient_in_float32_keeps_small_x() -> None:
    """d k3 / d logp = -expm1(x); autograd of exp(x) - x - 1 in float32 is up to 20 % off at x = 3e-7."""
    x = [3e-7, -3e-7, 1e-5, 1e-4]
    ours = gradient(k3, *x, dtype=torch.float32).double()
    exact = -torch.expm1(torch.tensor(x, dtype=torch.float32).double())
    torch.testing.assert_close(ours, exact, rtol=1e-6, atol=0)
    textbook = gradient(lambda p, r: torch.exp(r - p) - (r - p) - 1, *x, dtype=torch.float32).double()
    assert ((textbook - exact) / exact).abs().max() > 0.05
