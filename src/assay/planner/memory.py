"""A first estimate of training memory, in bytes. Part of what a plan will say; here it sizes micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

FLOAT = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """What of an architecture decides its memory."""

    parameters: int
    trainable: int
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int


def state_bytes(shape: Shape, *, frozen_copies: int = 0) -> int:
    """Float32 weights, gradients and two AdamW moments, and whole frozen copies (a reference)."""
    return FLOAT * (shape.parameters * (1 + frozen_copies) + 3 * shape.trainable)


def activation_bytes_per_token(shape: Shape) -> int:
    """Float32 activations that one position keeps for the backward pass.

    Each layer keeps about 16 vectors of the hidden size (two norms with their inputs, queries, keys, values,
    rotations, attention output, residuals, and the keys and values that each block of completions gathers) and 4
    of the intermediate size (gate, its activation, up, product). Measured with SmolLM2-135M: see docs/learner.md.
    """
    return FLOAT * shape.layers * (16 * shape.hidden + 4 * shape.intermediate)


def logits_bytes(shape: Shape, head_chunk: int = 256) -> int:
    """Float32 logits of one chunk of positions, with two copies that the loss makes of them."""
    return 3 * FLOAT * head_chunk * shape.vocabulary


def micro_batch_tokens(shape: Shape, budget_bytes: float, *, frozen_copies: int = 0, head_chunk: int = 256) -> int:
    """Positions of the largest micro-batch within the budget, or 0 if the model's state alone passes it."""
    left = budget_bytes - state_bytes(shape, frozen_copies=frozen_copies) - logits_bytes(shape, head_chunk)
    return max(0, int(left // activation_bytes_per_token(shape)))
