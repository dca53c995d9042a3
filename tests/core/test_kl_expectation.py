"""What each form of the KL term is worth in expectation, and what its gradient is: exact, over three symbols.

float64 sums over all symbols, gradients with respect to the logits. The table is that of docs/kl.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from assay.core.kl import KlGradient, kl_term

POLICY = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
REFERENCE = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
OLD = torch.tensor([0.45, 0.35, 0.2], dtype=torch.float64)
FAR = torch.tensor([0.6, 0.4 - 1e-6, 1e-6], dtype=torch.float64)
"""Its last symbol is 12.2 nats below the reference, where k3 is linear."""

REVERSE, FORWARD, SECOND, NOTHING = "KL(π‖ref)", "KL(ref‖π)", "E[x²]/2", "0"

TABLE: dict[tuple[str, KlGradient], tuple[str, str]] = {
    ("k1", "plain"): (REVERSE, NOTHING),
    ("k2", "plain"): (SECOND, REVERSE),
    ("k3", "plain"): (REVERSE, FORWARD),
    ("k1", "importance"): (REVERSE, REVERSE),
    ("k2", "importance"): (SECOND, SECOND),
    ("k3", "importance"): (REVERSE, REVERSE),
    ("k1", "straight_through"): (REVERSE, REVERSE),
    ("k2", "straight_through"): (SECOND, REVERSE),
    ("k3", "straight_through"): (REVERSE, REVERSE),
}
"""(estimator, form) to (what it is in expectation, what its gradient is the gradient of), sampled from the policy."""

rows = pytest.mark.parametrize(("kind", "form"), TABLE)


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p.log() - q.log())).sum()


QUANTITIES: dict[str, Callable[[Tensor], Tensor]] = {
    REVERSE: lambda p: kl(p, REFERENCE),
    FORWARD: lambda p: kl(REFERENCE, p),
    SECOND: lambda p: (p * (p.log() - REFERENCE.log()).square()).sum() / 2,
    NOTHING: lambda p: p.sum() * 0,
}


def with_gradient(of: Callable[[Tensor], Tensor], at: Tensor) -> tuple[Tensor, Tensor]:
    """A function of the policy and its gradient in the policy's logits."""
    logits = at.log().requires_grad_()
    value = of(torch.softmax(logits, dim=0))
    (grad,) = torch.autograd.grad(value, logits)
    return value.detach(), grad


def exact(name: str, at: Tensor = POLICY) -> tuple[Tensor, Tensor]:
    return with_gradient(QUANTITIES[name], at)


def expected_term(
    kind: str, form: KlGradient, *, at: Tensor = POLICY, sampled_from: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """E of the term over the symbols of ``sampled_from`` (the policy, if not given), and of its gradient."""
    sampler = at if sampled_from is None else sampled_from

    def term(policy: Tensor) -> Tensor:
        logprobs = policy.log()
        return (sampler * kl_term(kind, form, logprobs, REFERENCE.log(), torch.exp(logprobs - sampler.log()))).sum()

    return with_gradient(term, at)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def apart(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() > 1e-4)


def test_the_four_gradients_and_the_two_values_can_be_told_apart() -> None:
    gradients = [exact(name)[1] for name in QUANTITIES]
    assert all(apart(a, b) for i, a in enumerate(gradients) for b in gradients[:i])
    assert apart(exact(REVERSE)[0], exact(SECOND)[0])
    close(exact(FORWARD)[1], POLICY - REFERENCE)


@rows
def test_a12_on_samples_of_the_policy(kind: str, form: KlGradient) -> None:
    """verl PR 2953: what a term's value is an estimate of, its gradient need not be."""
    value, gradient = expected_term(kind, form)
    close(value, exact(TABLE[kind, form][0])[0])
    close(gradient, exact(TABLE[kind, form][1])[1])


@rows
def test_on_samples_of_older_weights_the_importance_ratio_alone_is_right(kind: str, form: KlGradient) -> None:
    value, gradient = expected_term(kind, form, sampled_from=OLD)
    of_value, of_gradient = exact(TABLE[kind, form][0])[0], exact(TABLE[kind, form][1])[1]
    if form == "importance":
        close(value, of_value)
        close(gradient, of_gradient)
    else:
        assert apart(value, of_value)
        assert apart(gradient, of_gradient)


def test_plain_k1_of_older_samples_pushes_away_from_the_older_weights_whatever_the_reference() -> None:
    _, gradient = expected_term("k1", "plain", sampled_from=OLD)
    close(gradient, -with_gradient(lambda p: kl(OLD, p), POLICY)[1])


@pytest.mark.parametrize("kind", ["k3_clamped", "k3_unbounded"])
@pytest.mark.parametrize("form", ["plain", "importance", "straight_through"])
def test_near_the_reference_the_peers_k3_is_ours(kind: str, form: KlGradient) -> None:
    for theirs, ours in zip(expected_term(kind, form), expected_term("k3", form), strict=True):
        close(theirs, ours)


def test_kl_in_the_reward_has_the_gradient_of_the_kl() -> None:
    """-k1 as a reward: the policy gradient of E[k1], in which k1 itself is a constant."""
    logits = POLICY.log().requires_grad_()
    logprobs = torch.log_softmax(logits, dim=0)
    rewards = -(logprobs - REFERENCE.log()).detach()
    (grad,) = torch.autograd.grad((POLICY * -rewards * logprobs).sum(), logits)
    close(grad, exact(REVERSE)[1])


@rows
def test_a9_a_descent_step_brings_the_policy_nearer_to_the_reference(kind: str, form: KlGradient) -> None:
    """Logic-RL issue 58: with the wrong sign the KL is maximised. Plain k1 does not move it at all."""
    _, gradient = expected_term(kind, form)
    after = torch.softmax(POLICY.log() - 0.1 * gradient, dim=0)
    if TABLE[kind, form][1] == NOTHING:
        close(after, POLICY)
        return
    assert kl(after, REFERENCE) < kl(POLICY, REFERENCE)
    assert kl(REFERENCE, after) < kl(REFERENCE, POLICY)


# Far from the reference


def shortfall(policy: Tensor) -> Tensor:
    """sum of ref - e^10 (x - 9) pi over the symbols beyond x = 10: what the linear part of k3 leaves out."""
    x = REFERENCE.log() - policy.log()
    return torch.where(x > 10, REFERENCE - math.exp(10) * (x - 9) * policy, 0.0).sum()


def test_beyond_ten_nats_k3_falls_short_of_the_kl_by_less_than_the_mass_that_the_policy_has_lost() -> None:
    value, gradient = expected_term("k3", "importance", at=FAR)
    expected, of_expected = with_gradient(lambda p: kl(p, REFERENCE) - shortfall(p), FAR)
    close(value, expected)
    close(gradient, of_expected)
    assert 0.01 < shortfall(FAR).item() < REFERENCE[2].item()
    close(expected_term("k3_unbounded", "plain", at=FAR)[0], exact(REVERSE, FAR)[0])
    close(expected_term("k1", "plain", at=FAR)[0], exact(REVERSE, FAR)[0])


def test_beyond_ten_nats_the_gradient_of_plain_k3_is_bounded_and_not_that_of_the_forward_kl() -> None:
    """The lost symbol is pulled back by e^10 pi, not by its mass in the reference; clamped, it is not pulled at all."""
    pulls = {kind: -expected_term(kind, "plain", at=FAR)[1][2].item() for kind in ("k3", "k3_unbounded", "k3_clamped")}
    assert pulls["k3_unbounded"] == pytest.approx(REFERENCE[2].item(), abs=1e-5)
    assert pulls["k3"] == pytest.approx(math.exp(10) * 1e-6, rel=1e-3)
    assert abs(pulls["k3_clamped"]) < 1e-5


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_straight_through_has_the_gradient_of_the_kl_however_far(kind: str) -> None:
    close(expected_term(kind, "straight_through", at=FAR)[1], exact(REVERSE, FAR)[1])


# Two tokens


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_importance_gives_the_gradient_of_each_tokens_kl_and_not_of_the_sequences(kind: str) -> None:
    """The second token's KL depends on the first token, which the term of the second does not move."""
    first = POLICY.log().requires_grad_()
    seconds = torch.stack([OLD, REFERENCE, POLICY]).log()
    logprobs = torch.log_softmax(first, dim=0)
    kl_of_second = torch.stack([kl(p, REFERENCE.flip(0)) for p in seconds.exp()])
    own = (POLICY * kl_term(kind, "importance", logprobs, REFERENCE.log(), logprobs.exp() / POLICY)).sum()
    terms = [kl_term(kind, "importance", p, REFERENCE.flip(0).log(), torch.ones(3)) for p in seconds]
    total = own + sum(POLICY[a] * (seconds[a].exp() * term).sum() for a, term in enumerate(terms))
    close(total.detach(), kl(POLICY, REFERENCE) + (POLICY * kl_of_second).sum())
    (grad,) = torch.autograd.grad(total, first)
    close(grad, exact(REVERSE)[1])
    _, of_sequence = with_gradient(lambda p: kl(p, REFERENCE) + (p * kl_of_second).sum(), POLICY)
    assert apart(grad, of_sequence)


def test_the_page_has_the_table() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "kl.md").read_text(encoding="utf-8")
    for (kind, form), (value, gradient) in TABLE.items():
        of = gradient if gradient == NOTHING else f"∇ {gradient}"
        assert f"| `{kind}` | `{form}` | {value} | {of} |" in page
