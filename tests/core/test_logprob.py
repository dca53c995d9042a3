"""Chunked log-probs and entropies against the plain form, in value and gradient; the peers: test_oracle_count."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from assay.core.logprob import scaled_logits, token_logprobs

N, H, V = 23, 8, 31
SETTINGS = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "softcap": {"softcap": 2.0},
    "bias": {"bias": True},
    "all": {"temperature": 1.3, "softcap": 2.0, "bias": True},
}


def problem(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(11)
    hidden = torch.randn(N, H, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    head = torch.randn(V, H, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    bias = torch.randn(V, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, head, bias, torch.randint(0, V, (N,), generator=generator)


def plain(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The textbook form over the whole vocabulary at once."""
    logits = hidden @ head.T + (0 if bias is None else bias)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logprobs = torch.log_softmax(logits / temperature, dim=-1)
    return logprobs[torch.arange(len(targets)), targets], -(logprobs.exp() * logprobs).sum(dim=-1)


@pytest.mark.parametrize("chunk", [1, 4, 23, 1000])
@pytest.mark.parametrize("setting", SETTINGS)
def test_value_entropy_and_gradients_are_those_of_log_softmax(setting: str, chunk: int) -> None:
    hidden, head, bias, targets = problem()
    options = dict(SETTINGS[setting])
    bias_V = bias if options.pop("bias", False) else None
    logprobs, entropies = token_logprobs(hidden, head, targets, chunk=chunk, bias_V=bias_V, **options)
    expected, entropy = plain(hidden, head, targets, bias=bias_V, **options)
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(entropies, entropy, rtol=0, atol=1e-12)
    weights = torch.linspace(-1, 1, N, dtype=torch.float64)
    leaves = [hidden, head] if bias_V is None else [hidden, head, bias_V]
    ours = torch.autograd.grad((weights * logprobs).sum(), leaves)
    theirs = torch.autograd.grad((weights * expected).sum(), leaves)
    for a, b in zip(ours, theirs, strict=True):
        assert b.abs().max() > 1e-3
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 4, 1000])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_gradient_of_the_entropy_is_that_of_log_softmax(setting: str, chunk: int) -> None:
    """Alone, and together with that of the log-probs: an entropy bonus is part of the same loss."""
    hidden, head, bias, targets = problem()
    options = dict(SETTINGS[setting])
    bias_V = bias if options.pop("bias", False) else None
    leaves = [hidden, head] if bias_V is None else [hidden, head, bias]
    weights_N = torch.linspace(-1, 2, N, dtype=torch.float64)
    for of_logprobs in (0.0, 1.0):
        ours = token_logprobs(hidden, head, targets, chunk=chunk, bias_V=bias_V, **options)
        theirs = plain(hidden, head, targets, bias=bias_V, **options)
        grads = [
            torch.autograd.grad((weights_N * (of_logprobs * logprobs + entropy)).sum(), leaves)
            for logprobs, entropy in (ours, theirs)
        ]
        for a, b in zip(*grads, strict=True):
            assert b.abs().max() > 1e-3
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_without_gradient_the_result_is_the_same() -> None:
    hidden, head, bias, targets = problem()
    with_graph = token_logprobs(hidden, head, targets, bias_V=bias, chunk=5)
    with torch.no_grad():
        without = token_logprobs(hidden, head, targets, bias_V=bias, chunk=5)
    for a, b in zip(with_graph, without, strict=True):
        assert torch.equal(a, b)
        assert not b.requires_grad


def test_probabilities_of_all_tokens_sum_to_one() -> None:
    hidden, head, _, _ = problem()
    total = sum(token_logprobs(hidden, head, torch.full((N,), v), temperature=0.5)[0].exp() for v in range(V))
    torch.testing.assert_close(total, torch.ones(N, dtype=torch.float64), rtol=0, atol=1e-12)


def test_low_precision_inputs_give_float32_results() -> None:
    hidden, head, _, targets = problem(torch.bfloat16)
    logprobs, entropies = token_logprobs(hidden, head, targets, chunk=7)
    assert logprobs.dtype == entropies.dtype == torch.float32
    logits = torch.nn.functional.linear(hidden, head).float()
    expected = torch.log_softmax(logits, dim=-1).gather(1, targets.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=2e-6)


def test_tokens_that_cannot_be_sampled_do_not_spoil_the_entropy() -> None:
    """A bias of -inf forbids tokens: 0 * -inf is 0 in an entropy."""
    hidden, head, _, _ = problem()
    bias = torch.full((V,), -torch.inf, dtype=torch.float64)
    bias[:3] = 0.0
    logprobs, entropies = token_logprobs(hidden, head, torch.arange(N) % 3, bias_V=bias, chunk=6)
    expected, entropy = plain(hidden, head[:3], torch.arange(N) % 3)
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(entropies, entropy, rtol=0, atol=1e-12)
    for grad in torch.autograd.grad(logprobs.sum(), (hidden, head)):
        assert torch.isfinite(grad).all()


def test_a_token_that_cannot_be_sampled_has_log_probability_minus_infinity() -> None:
    hidden, head, bias, _ = problem()
    forbidden = torch.where(torch.arange(V) == 5, -torch.inf, bias)
    logprobs, _ = token_logprobs(hidden, head, torch.full((N,), 5), bias_V=forbidden)
    assert (logprobs == -torch.inf).all()


def test_one_hot_and_uniform_entropies() -> None:
    head = torch.eye(4, dtype=torch.float64)
    hidden = torch.tensor([[0.0, 0, 0, 0], [1e4, 0, 0, 0]], dtype=torch.float64)
    logprobs, entropies = token_logprobs(hidden, head, torch.tensor([2, 0]))
    torch.testing.assert_close(logprobs, torch.tensor([0.25, 1.0], dtype=torch.float64).log())
    torch.testing.assert_close(entropies, torch.tensor([4.0, 1.0], dtype=torch.float64).log())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_no_positions_give_empty_float32_results_that_can_be_differentiated(dtype: torch.dtype) -> None:
    hidden = torch.zeros(0, H, dtype=dtype, requires_grad=True)
    logprobs, entropies = token_logprobs(hidden, torch.ones(V, H, dtype=dtype), torch.zeros(0, dtype=torch.long))
    assert logprobs.shape == entropies.shape == (0,)
    assert logprobs.dtype == entropies.dtype == torch.float32
    logprobs.sum().backward()


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_temperature_must_be_positive(temperature: float) -> None:
    hidden, head, _, targets = problem()
    with pytest.raises(ValueError, match=rf"temperature.*{temperature}"):
        token_logprobs(hidden, head, targets, temperature=temperature)


def test_chunk_must_be_positive() -> None:
    hidden, head, _, targets = problem()
    with pytest.raises(ValueError, match=r"chunk.*-1"):
        token_logprobs(hidden, head, targets, chunk=-1)


def test_softcap_comes_before_temperature() -> None:
    """As the model and the sampler do: the model caps, the sampler divides."""
    logits = scaled_logits(torch.tensor([[3.0]]), torch.tensor([[1.0]]), 0.5, 2.0, None)
    assert logits.item() == pytest.approx(2.0 * torch.tanh(torch.tensor(1.5)).item() / 0.5, abs=1e-6)
