"""Addition: right sums, and splits that share no pair of operands."""

from __future__ import annotations

import re

import pytest

from assay.data.addition import addition, is_held_out
from assay.errors import DataError
from assay.types import Row


def operands(row: Row) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)\+(\d+)=", str(row.prompt))
    assert match is not None
    return int(match[1]), int(match[2])


@pytest.mark.parametrize("split", ["train", "sft", "heldout"])
@pytest.mark.parametrize("digits", [1, 2, 5])
def test_every_answer_is_the_sum_of_operands_of_the_asked_width(split: str, digits: int) -> None:
    for row in addition(split=split, digits=digits, rows=8):
        a, b = operands(row)
        assert len(str(a)) == len(str(b)) == digits
        assert row.answer == str(a + b)


def test_held_out_pairs_are_in_no_training_split_in_either_order_whatever_the_seed() -> None:
    training = {
        frozenset(operands(row))
        for seed in (0, 1)
        for split, rows in (("train", 7000), ("sft", 20_000))
        for row in addition(split=split, rows=rows, seed=seed)
    }
    held_out = {frozenset(operands(row)) for seed in (0, 5) for row in addition(split="heldout", rows=512, seed=seed)}
    assert len(held_out) > 300
    assert not training & held_out


def test_about_a_tenth_is_held_out() -> None:
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    assert sum(is_held_out(a, b) for a, b in pairs) == 829
    assert all(is_held_out(a, b) == is_held_out(b, a) for a, b in pairs)


def test_train_and_held_out_rows_are_distinct_and_sft_may_repeat() -> None:
    for split, rows in (("train", 7000), ("heldout", 829)):
        made = addition(split=split, rows=rows)
        assert len({row.prompt for row in made}) == len({row.row_id for row in made}) == rows
    assert len({row.prompt for row in addition(split="sft", rows=20_000)}) < 8100 - 829 + 1


def test_more_distinct_rows_than_there_are_is_an_error_and_the_default_is_not() -> None:
    with pytest.raises(DataError, match=r"rows=830 asked for, but split=heldout has 829 distinct pairs of 2-digit"):
        addition(split="heldout", rows=830)
    assert 0 < len(addition(split="train", digits=1)) < 100


def test_a_shorter_data_set_is_a_prefix_and_the_seed_matters() -> None:
    assert addition(split="train", rows=5) == addition(split="train", rows=50)[:5]
    assert addition(split="train", rows=50) != addition(split="train", rows=50, seed=1)


def test_the_rows_are_the_same_on_every_machine() -> None:
    assert [row.prompt for row in addition(split="train", rows=1)] == ["90+55="]
