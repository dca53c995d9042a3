"""Policy loss and aggregation: by hand, and invariances. Against the peers: test_oracle_count."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.core.kl import k3
from assay.core.loss import (
    LOSSES,
    MAX_LOG_RATIO,
    Aggregation,
    Denominators,
    aggregate,
    clipped_surrogate,
    correction_weights,
    is_clipped,
    sequence_level,
    sequence_weights,
)

AGGREGATIONS: tuple[Aggregation, ...] = ("sequence_mean", "token_mean", "fixed_length", "prompt_mean")
NAN = float("nan")


def token_loss(ratio: float, advantage: float, **clipping: float) -> float:
    logprob = torch.tensor([ratio], dtype=torch.float64).log()
    loss = clipped_surrogate(logprob, torch.zeros_like(logprob), torch.tensor([advantage]), **clipping)
    return loss.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"), [(1.5, 1, 1.2), (1.5, -1, -1.5), (0.5, 1, 0.5), (0.5, -1, -0.8), (1, 1, 1)]
)
def test_worked_clip(ratio: float, advantage: float, objective: float) -> None:
    assert token_loss(ratio, advantage) == pytest.approx(-objective, abs=1e-12)


def test_worked_clip_higher_and_dual_clip() -> None:
    assert token_loss(1.5, 1, eps_low=0.2, eps_high=0.28) == pytest.approx(-1.28, abs=1e-12)
    assert token_loss(0.5, -1, eps_low=0.3, eps_high=0.28) == pytest.approx(0.7, abs=1e-12)
    assert token_loss(4, -1) == pytest.approx(4, abs=1e-12)
    assert token_loss(4, -1, dual_clip=3) == pytest.approx(3, abs=1e-12)
    assert token_loss(2, -1, dual_clip=3) == pytest.approx(2, abs=1e-12)
    assert token_loss(4, 1, dual_clip=3) == pytest.approx(-1.2, abs=1e-12)  # positive advantages are not touched


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_a_log_ratio_of_100_gives_no_nan(advantage: float) -> None:
    """exp(100) is infinite in float32; 0 * inf must not reach loss or gradient."""
    logprobs = torch.zeros(1, requires_grad=True)
    loss = clipped_surrogate(logprobs, torch.tensor([-100.0]), torch.tensor([advantage]))
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    assert torch.isfinite(loss).all()
    assert grad.item() == 0.0
    assert MAX_LOG_RATIO == 20.0


# Sequences by hand


def test_one_ratio_a_sequence_is_clipped_as_one() -> None:
    """Log ratios .9 and .1 have the mean .5: every token counts exp(.5), past 1.2 for a positive advantage."""
    old_BT = torch.zeros(2, 3, dtype=torch.float64)
    logprobs_BT = torch.tensor([[0.9, 0.1, NAN], [-0.1, 0.1, NAN]], dtype=torch.float64).requires_grad_()
    mask_BT = torch.tensor([[1, 1, 0], [1, 1, 0]])
    scored_BT = sequence_level(logprobs_BT, old_BT, mask_BT)
    objective_BT = -clipped_surrogate(scored_BT, old_BT, torch.ones(2, 1))[:, :2]
    assert objective_BT.tolist() == [[pytest.approx(1.2)] * 2, [pytest.approx(1.0)] * 2]
    (grad_BT,) = torch.autograd.grad(objective_BT.sum(), logprobs_BT)
    assert grad_BT[:, :2].tolist() == [[0.0, 0.0], [pytest.approx(1.0)] * 2]
    below_BT = -clipped_surrogate(scored_BT, old_BT, -torch.ones(2, 1))[:, :2]
    assert below_BT[0].tolist() == [pytest.approx(-math.exp(0.5))] * 2


def test_masked_sequences() -> None:
    """[0.5, 0.5] sums to log w = 1 (e > 2: out), [0.5, -1] to less than 0 (in); masked tokens do not count."""
    gap = torch.tensor([[0.5, 0.5, 9.0], [0.5, -1.0, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    assert correction_weights(gap, torch.zeros_like(gap), mask, kind="mis", cap=2.0).tolist() == [[0.0] * 3, [1.0] * 3]


# Aggregation by hand


def test_aggregation_by_hand() -> None:
    """Losses [1], [2, 4, 6], [3, 5], [7, 9]: the first two of one prompt, the others of another; L_max 4."""
    loss_BT = torch.tensor([[1, NAN, NAN], [2, 4, 6], [3, 5, NAN], [7, 9, NAN]], dtype=torch.float64)
    mask_BT = ~loss_BT.isnan()
    lengths_B = torch.tensor([1, 3, 2, 2])
    prompt_tokens_B = torch.tensor([4, 4, 4, 4])
    denominators = Denominators(sequences=4, tokens=8, prompts=2, max_length=4)
    expected = {
        "sequence_mean": (1 + 4 + 4 + 8) / 4,
        "token_mean": 37 / 8,
        "fixed_length": 37 / 16,
        "prompt_mean": (13 / 4 + 24 / 4) / 2,
    }
    for aggregation in AGGREGATIONS:
        weights = sequence_weights(aggregation, lengths_B, prompt_tokens_B, denominators)
        assert aggregate(loss_BT, mask_BT, weights).item() == pytest.approx(expected[aggregation], abs=1e-12)


def test_prompt_mean_counts_each_prompt_once_however_long() -> None:
    """Prompt one: 1 and 3 tokens of loss 1; prompt two: 30 tokens of loss 3. (1 + 3) / 2, not (4 + 90) / 34."""
    lengths_B = torch.tensor([1, 3, 10, 20])
    prompt_tokens_B = torch.tensor([4, 4, 30, 30])
    mask_BT = torch.arange(20) < lengths_B.unsqueeze(1)
    loss_BT = torch.tensor([1.0, 1.0, 3.0, 3.0], dtype=torch.float64).unsqueeze(1).expand(4, 20)
    denominators = Denominators(sequences=4, tokens=34, prompts=2, max_length=20)
    weights = sequence_weights("prompt_mean", lengths_B, prompt_tokens_B, denominators)
    assert aggregate(loss_BT, mask_BT, weights).item() == pytest.approx(2.0, abs=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_minibatch_without_loss_tokens_is_zero_and_not_nan(aggregation: Aggregation) -> None:
    nothing = torch.zeros(3)
    weights = sequence_weights(aggregation, nothing, nothing, Denominators(0, 0, 0, max_length=8))
    assert weights.tolist() == [0.0, 0.0, 0.0]
    assert aggregate(torch.full((3, 8), NAN), torch.zeros(3, 8), weights).item() == 0.0


def test_unknown_aggregation_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"sequence_mean.*'mean'"):
        sequence_weights("mean", torch.ones(1), torch.ones(1), Denominators(1, 1, 1, 1))  # type: ignore[arg-type]


# Invariances


def random_batch(dtype: torch.dtype = torch.float64, rows: int = 12, width: int = 10) -> dict[str, Tensor]:
    """Three prompts of four completions, ratios on both sides of the clip, and a reference."""
    generator = torch.Generator().manual_seed(7)
    old = -torch.rand(rows, width, generator=generator, dtype=torch.float64) * 4
    lengths = torch.randint(1, width + 1, (rows, 1), generator=generator)
    batch = {
        "old_log_prob": old,
        "log_prob": old + 0.4 * torch.randn(rows, width, generator=generator, dtype=torch.float64),
        "ref_log_prob": old + 0.4 * torch.randn(rows, width, generator=generator, dtype=torch.float64),
        "advantages": torch.randn(rows, 1, generator=generator, dtype=torch.float64),
    }
    mask = torch.arange(width) < lengths
    return {name: tensor.to(dtype) for name, tensor in batch.items()} | {"mask": mask}


def prompt_tokens(mask: Tensor) -> Tensor:
    return mask.sum(dim=1).reshape(3, 4).sum(dim=1).repeat_interleave(4)


def global_weights(aggregation: Aggregation, mask: Tensor) -> Tensor:
    denominators = Denominators(sequences=12, tokens=int(mask.sum()), prompts=3, max_length=10)
    return sequence_weights(aggregation, mask.sum(dim=1), prompt_tokens(mask), denominators)


def loss_and_gradient(
    inputs: dict[str, Tensor], weights: Tensor, beta: float = 0.0, **clipping: float | None
) -> tuple[Tensor, Tensor]:
    logprobs = inputs["log_prob"].clone().requires_grad_()
    tokens = clipped_surrogate(logprobs, inputs["old_log_prob"], inputs["advantages"], **clipping)
    if beta:
        tokens = tokens + beta * k3(logprobs, inputs["ref_log_prob"])
    loss = aggregate(tokens, inputs["mask"], weights)
    (grad,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), grad


def rows_of(batch: dict[str, Tensor], rows: Any) -> dict[str, Tensor]:
    return {name: tensor[rows] for name, tensor in batch.items()}


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=str)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("sizes", [[1] * 12, [5, 7], [4, 4, 4], [11, 1]], ids=str)
def test_micro_batches_and_their_order_do_not_matter(
    aggregation: Aggregation, sizes: list[int], dtype: torch.dtype, rtol: float
) -> None:
    batch = random_batch(dtype)
    weights = global_weights(aggregation, batch["mask"])
    loss, grad = loss_and_gradient(batch, weights, beta=0.1)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    parts = [(rows, *loss_and_gradient(rows_of(batch, rows), weights[rows], beta=0.1)) for rows in order.split(sizes)]
    gathered = torch.zeros_like(grad)
    for rows, _, part in parts:
        gathered[rows] = part
    torch.testing.assert_close(sum(part for _, part, _ in parts), loss, rtol=rtol, atol=rtol * float(loss.abs()))
    torch.testing.assert_close(gathered, grad, rtol=rtol, atol=0)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a10_padding_does_not_matter_and_is_never_read(aggregation: Aggregation) -> None:
    """open-instruct PR 535: 500 pads full of NaN leave loss, KL and gradient as they are."""
    batch = random_batch()
    weights = global_weights(aggregation, batch["mask"])
    loss, grad = loss_and_gradient(batch, weights, beta=0.1)
    dirty = {
        name: tensor if name == "advantages" else tensor.masked_fill(~batch["mask"], NAN)
        for name, tensor in batch.items()
        if name != "mask"
    }
    padded = {
        name: torch.nn.functional.pad(t, (0, 500), value=NAN) for name, t in dirty.items() if name != "advantages"
    }
    padded |= {"advantages": batch["advantages"], "mask": torch.nn.functional.pad(batch["mask"], (0, 500))}
    padded_loss, _ = loss_and_gradient(padded, weights, beta=0.1)
    torch.testing.assert_close(padded_loss, loss, rtol=1e-14, atol=0)
    finite = {name: t.nan_to_num(nan=-3.0) for name, t in padded.items()}
    _, padded_grad = loss_and_gradient(finite, weights, beta=0.1)
    torch.testing.assert_close(padded_grad[:, :10], grad, rtol=1e-14, atol=0)
    assert torch.count_nonzero(padded_grad[:, 10:]) == 0


def test_a15_a_completion_masked_for_truncation_is_in_neither_numerator_nor_denominator() -> None:
    """TRL PR 4976: one truncated of four; lengths, loss and token counts come from the same mask."""
    batch = rows_of(random_batch(), slice(0, 4))
    kept = torch.tensor([True, True, False, True])
    masked = batch | {"mask": batch["mask"] & kept.unsqueeze(1)}
    for aggregation in AGGREGATIONS:
        lengths = masked["mask"].sum(dim=1)
        total = int(lengths.sum())
        denominators = Denominators(sequences=3, tokens=total, prompts=1, max_length=10)
        weights = sequence_weights(aggregation, lengths, torch.full((4,), total), denominators)
        assert weights.gt(0).tolist() == kept.tolist()
        loss, grad = loss_and_gradient(masked, weights, beta=0.1)
        without, grad_without = loss_and_gradient(rows_of(batch, kept), weights[kept], beta=0.1)
        torch.testing.assert_close(loss, without, rtol=1e-14, atol=0)
        torch.testing.assert_close(grad[kept], grad_without, rtol=1e-14, atol=0)
        assert torch.count_nonzero(grad[~kept]) == 0


@pytest.mark.parametrize(("eps_low", "eps_high"), [(0.2, 0.2), (0.2, 0.28), (0.1, 0.4)])
def test_is_clipped_is_where_the_gradient_is_exactly_zero(eps_low: float, eps_high: float) -> None:
    batch = random_batch()
    logprobs = batch["log_prob"].requires_grad_()
    arguments = (logprobs, batch["old_log_prob"], batch["advantages"])
    loss = clipped_surrogate(*arguments, eps_low=eps_low, eps_high=eps_high)
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    clipped = is_clipped(*arguments, eps_low=eps_low, eps_high=eps_high)
    assert 10 < int(clipped.sum()) < 100
    assert torch.equal(clipped, grad == 0)


def test_the_gradient_at_the_old_policy_is_minus_the_advantage() -> None:
    """On policy (ratio 1, a tie of both branches) the surrogate is plain policy gradient."""
    batch = random_batch()
    for loss in (entry.tokens for entry in LOSSES.values()):
        logprobs = batch["old_log_prob"].clone().requires_grad_()
        tokens = loss(logprobs, batch["old_log_prob"], batch["advantages"])
        (grad,) = torch.autograd.grad(tokens.sum(), logprobs)
        torch.testing.assert_close(grad, -batch["advantages"].expand_as(grad), rtol=1e-14, atol=0)
