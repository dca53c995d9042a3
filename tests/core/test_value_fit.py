"""What a critic knows, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from assay.core.value_fit import explained_variance, first_half

MASK = torch.tensor([[1, 1, 0], [1, 1, 0]])
RETURNS = torch.tensor([[1.0, 1.0, math.nan], [0.0, 0.0, math.nan]])


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1.0, 0.0], 1.0), ([0.5, 0.5], 0.0), ([7.0, 7.0], 0.0), ([0.0, 1.0], -3.0), ([0.75, 0.25], 0.75)],
)
def test_share_of_the_variance_of_the_returns(values: list[float], expected: float) -> None:
    """Returns 1 and 0, variance .25; a critic that says the same everywhere knows nothing, whatever it says."""
    values_BT = torch.tensor(values)[:, None].expand(2, 3)
    assert explained_variance(values_BT, RETURNS, MASK) == pytest.approx(expected)


def test_where_all_earned_the_same_there_is_nothing_to_explain() -> None:
    same = torch.full((2, 3), 0.1 + 0.2)
    assert explained_variance(torch.zeros(2, 3), same, MASK) is None
    assert explained_variance(torch.zeros(2, 3), RETURNS, torch.zeros(2, 3)) is None


def test_the_first_half_counts_own_tokens_alone() -> None:
    mask = torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    assert first_half(mask).long().tolist() == [[1, 0, 1, 0, 0], [1, 1, 0, 0, 0], [0] * 5]
