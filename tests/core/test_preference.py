"""DPO by hand, its gradient by the paper's formula, and what must not change it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from assay.core.preference import dpo, implicit_reward


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_worked_pair() -> None:
    # Rewards .1 (-10 + 12) = .2 and .1 (-9 + 8) = -.1, so the loss is -log sigmoid(.3) = log(1 + e^-.3).
    assert implicit_reward(f64(-10), f64(-12), beta=0.1).item() == pytest.approx(0.2, abs=1e-15)
    assert implicit_reward(f64(-9), f64(-8), beta=0.1).item() == pytest.approx(-0.1, abs=1e-15)
    loss = dpo(f64(-10), f64(-9), f64(-12), f64(-8), beta=0.1)
    assert loss.item() == pytest.approx(math.log1p(math.exp(-0.3)), abs=1e-15)
    assert loss.item() == pytest.approx(0.5543552444685271, abs=1e-12)


def test_a_worked_odds_ratio() -> None:
    # The chosen three times likelier than under the reference, the rejected half as likely: (3 / .5)^beta to 1.
    for beta, loss in ((1.0, math.log(7 / 6)), (0.5, math.log1p(6**-0.5)), (2.0, math.log(37 / 36))):
        got = dpo(f64(math.log(0.3)), f64(math.log(0.2)), f64(math.log(0.1)), f64(math.log(0.4)), beta=beta)
        assert got.item() == pytest.approx(loss, abs=1e-12)


def test_a_policy_that_is_the_reference_has_log_2() -> None:
    chosen, rejected = f64(-3.5, -800.0), f64(-7.0, -1.0)
    assert dpo(chosen, rejected, chosen, rejected, beta=0.3).tolist() == pytest.approx([math.log(2)] * 2, abs=1e-15)
    assert implicit_reward(chosen, chosen, beta=0.3).tolist() == [0.0, 0.0]


def test_the_wrong_way_round_the_loss_grows_by_the_margin() -> None:
    # log(1 + e^m) - log(1 + e^-m) = m.
    right = dpo(f64(-1), f64(-9), f64(-4), f64(-5), beta=0.5)
    wrong = dpo(f64(-9), f64(-1), f64(-5), f64(-4), beta=0.5)
    assert (wrong - right).item() == pytest.approx(0.5 * (3 + 4), abs=1e-12)


def test_what_is_added_to_both_completions_changes_nothing() -> None:
    chosen, rejected, ref_chosen, ref_rejected = f64(-4, -6), f64(-5, -3), f64(-4.5, -5), f64(-4, -4)
    plain = dpo(chosen, rejected, ref_chosen, ref_rejected, beta=0.2)
    torch.testing.assert_close(
        dpo(chosen + 7, rejected + 7, ref_chosen, ref_rejected, beta=0.2), plain, rtol=0, atol=1e-14
    )
    torch.testing.assert_close(
        dpo(chosen, rejected, ref_chosen - 3, ref_rejected - 3, beta=0.2), plain, rtol=0, atol=1e-14
    )


def test_the_gradient_is_the_papers() -> None:
    # Section 4: -beta sigmoid(reward of the rejected - reward of the chosen), on log pi(chosen); minus it on the other.
    chosen, rejected = f64(-4, -6, -2).requires_grad_(), f64(-5, -3, -2).requires_grad_()
    ref_chosen, ref_rejected, beta = f64(-4.5, -5, -2), f64(-4, -4, -2), 0.7
    dpo(chosen, rejected, ref_chosen, ref_rejected, beta=beta).sum().backward()
    weight = torch.sigmoid(beta * (rejected - ref_rejected) - beta * (chosen - ref_chosen)).detach()
    torch.testing.assert_close(chosen.grad, -beta * weight, rtol=0, atol=1e-14)
    torch.testing.assert_close(rejected.grad, beta * weight, rtol=0, atol=1e-14)
    assert chosen.grad is not None
    assert chosen.grad[2].item() == pytest.approx(-0.35, abs=1e-15)


def test_gradcheck() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(
        (5 * torch.randn(6, dtype=torch.float64, generator=generator)).requires_grad_(grad)
        for grad in (True, True, False, False)
    )
    assert torch.autograd.gradcheck(lambda *args: dpo(*args, beta=0.3), inputs)


@pytest.mark.parametrize("margin", [-1e4, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_huge_margin_is_finite_in_value_and_gradient(margin: float, dtype: torch.dtype) -> None:
    w = torch.tensor([margin], dtype=dtype, requires_grad=True)
    zero = torch.zeros(1, dtype=dtype)
    loss = dpo(w, zero, zero, zero, beta=1.0)
    loss.sum().backward()
    assert loss.item() == max(-margin, 0.0)
    assert w.grad is not None
    assert w.grad.item() == (-1.0 if margin < 0 else 0.0)
