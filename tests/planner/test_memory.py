"""Memory of training: the state by hand, and micro-batches that fill a budget and never pass it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.planner.memory import Shape, activation_bytes_per_token, micro_batch_tokens, state_bytes

SHAPE = Shape(parameters=1000, trainable=1000, layers=3, hidden=8, intermediate=20, vocabulary=50)


def test_the_state_is_weights_gradients_and_two_moments() -> None:
    assert state_bytes(SHAPE) == 16 * 1000
    assert state_bytes(SHAPE, frozen_copies=1) == 20 * 1000
    # LoRA: the frozen weights once, the adapters four times.
    assert state_bytes(replace(SHAPE, trainable=10)) == 4 * 1000 + 12 * 10


def test_activations_of_a_token() -> None:
    assert activation_bytes_per_token(SHAPE) == 4 * 3 * (16 * 8 + 4 * 20)


@pytest.mark.parametrize("copies", [0, 1])
@pytest.mark.parametrize("budget", [1.7e5, 2e5, 1e6, 1e9])
def test_the_micro_batch_is_the_largest_that_fits(budget: float, copies: int) -> None:
    tokens = micro_batch_tokens(SHAPE, budget, frozen_copies=copies)
    fixed = state_bytes(SHAPE, frozen_copies=copies) + 3 * 4 * 256 * 50
    each = activation_bytes_per_token(SHAPE)
    assert fixed + tokens * each <= budget or tokens == 0
    assert fixed + (tokens + 1) * each > budget


@pytest.mark.parametrize("budget", [-1e9, 0.0, 16_000.0, 169_599.0])
def test_a_budget_that_the_state_alone_passes_has_no_micro_batch(budget: float) -> None:
    assert micro_batch_tokens(SHAPE, budget) == 0


def test_a_smaller_head_chunk_leaves_more() -> None:
    assert micro_batch_tokens(SHAPE, 1e6, head_chunk=16) > micro_batch_tokens(SHAPE, 1e6)
