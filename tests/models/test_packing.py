"""Packing: what sequences share at their start stands in the row once, and nothing else changes."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.models.packing import PackedRow, TokenIds, pack, packed_length

CPU = torch.device("cpu")
SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple), min_size=1, max_size=12)


def gathered(row: PackedRow, tokens: torch.Tensor) -> list[TokenIds]:
    return [tuple(tokens[0, list(places)].tolist()) for places in row.index]


def prefixes(sequences: list[TokenIds]) -> set[TokenIds]:
    return {s[:n] for s in sequences for n in range(1, len(s) + 1)}


def test_a_shared_prompt_stands_once() -> None:
    row = pack([(1, 2, 3), (1, 2, 4, 5)], CPU)
    assert row.input_ids.tolist() == [[1, 2, 3, 4, 5]]
    assert row.position_ids.tolist() == [[0, 1, 2, 2, 3]]
    assert row.index == ((0, 1, 2), (0, 1, 3, 4))


def test_index_is_in_the_order_given_and_duplicates_share_all_places() -> None:
    row = pack([(9,), (1, 2), (9,), (1, 2, 3)], CPU)
    assert row.input_ids.tolist() == [[1, 2, 3, 9]]
    assert row.index == ((3,), (0, 1), (3,), (0, 1, 2))


def test_sequences_that_share_only_with_one_far_before_still_share() -> None:
    sequences = [(1, 2, 3), (1, 2, 4, 6), (1, 2, 4, 7), (1, 5)]
    row = pack(sequences, CPU)
    assert row.input_ids.tolist() == [[1, 2, 3, 4, 6, 7, 5]]
    assert gathered(row, row.input_ids) == sequences


def test_sequences_without_anything_in_common_stand_one_after_the_other() -> None:
    assert packed_length([(1, 2), (2, 1), (3,)]) == 5


@pytest.mark.parametrize("sequences", [[()], [(1, 2), ()]])
def test_an_empty_sequence_is_refused(sequences: list[TokenIds]) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        pack(sequences, CPU)
    with pytest.raises(ValueError, match="at least one token"):
        packed_length(sequences)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(SEQUENCES)
def test_every_sequence_is_whole_in_its_places_and_no_prefix_stands_twice(sequences: list[TokenIds]) -> None:
    row = pack(sequences, CPU)
    assert gathered(row, row.input_ids) == sequences
    assert gathered(row, row.position_ids) == [tuple(range(len(s))) for s in sequences]
    assert row.input_ids.shape == row.position_ids.shape == (1, len(prefixes(sequences)))
    assert packed_length(sequences) == len(prefixes(sequences))
    place_of = {s[: n + 1]: places[n] for s, places in zip(sequences, row.index, strict=True) for n in range(len(s))}
    assert sorted(place_of.values()) == list(range(row.input_ids.shape[1]))


@settings(derandomize=True, max_examples=50, deadline=None)
@given(SEQUENCES, st.randoms(use_true_random=False))
def test_the_row_does_not_depend_on_the_order_of_the_sequences(sequences: list[TokenIds], random: Random) -> None:
    shuffled = list(sequences)
    random.shuffle(shuffled)
    assert torch.equal(pack(shuffled, CPU).input_ids, pack(sequences, CPU).input_ids)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(SEQUENCES)
def test_each_query_attends_to_its_own_history_alone(sequences: list[TokenIds]) -> None:
    """Zero queries weigh all keys they see alike: the output is the mean of one-hot values, a history's share."""
    row = pack(sequences, CPU)
    N = row.input_ids.shape[1]
    zeros_HND = torch.zeros(2, N, N)
    out_HND = row.layout.attend(0, zeros_HND, zeros_HND[:1], torch.eye(N)[None], 1.0)
    for places in row.index:
        for n, place in enumerate(places):
            expected_D = torch.zeros(N)
            expected_D[list(places[: n + 1])] = 1 / (n + 1)
            torch.testing.assert_close(out_HND[0, place], expected_D)
            torch.testing.assert_close(out_HND[1, place], expected_D)
