"""Packing without padding: sequences in one row, and what they share at their start computed once.

Sorted, each sequence shares with the one before it all that it shares with any earlier one. So each adds to the
row only its own tail, and looks back at the rest: a prompt stands once for its whole group, a system line once
for the whole batch, and completions that begin alike share that beginning too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from torch import Tensor

from assay.models.attention import attend_folded, folded_bias

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One row for the model: ids and positions [1, N], who attends to whom, and where the sequences stand."""

    input_ids: Tensor
    position_ids: Tensor
    layout: PackedLayout
    index: tuple[tuple[int, ...], ...]
    """For each sequence, in the order given, where each of its tokens stands in the row."""


@dataclass(frozen=True, slots=True)
class Tail:
    """What one sequence adds to the row: its tokens from ``shared`` on."""

    places: tuple[int, ...]
    """Where every token of the sequence stands in the row, the shared ones included."""
    shared: int

    @property
    def length(self) -> int:
        return len(self.places) - self.shared


def pack(sequences: Sequence[TokenIds], device: torch.device) -> PackedRow:
    """Lay sequences out in one row, in sorted order. Raises ValueError for an empty one."""
    ids: list[int] = []
    positions: list[int] = []
    tails: dict[TokenIds, Tail] = {}
    before: tuple[int, ...] = ()
    for sequence, shared in _tails(sequences):
        before = before[:shared] + tuple(range(len(ids), len(ids) + len(sequence) - shared))
        tails[sequence] = Tail(before, shared)
        ids += sequence[shared:]
        positions += range(shared, len(sequence))
    return PackedRow(
        torch.tensor([ids], device=device),
        torch.tensor([positions], device=device),
        PackedLayout(list(tails.values()), device),
        tuple(tails[sequence].places for sequence in sequences),
    )


def packed_length(sequences: Sequence[TokenIds]) -> int:
    """Positions of the row that ``pack`` makes."""
    return sum(len(sequence) - shared for sequence, shared in _tails(sequences))


def _tails(sequences: Sequence[TokenIds]) -> Iterator[tuple[TokenIds, int]]:
    """Distinct sequences in sorted order, each with how many tokens it shares with the one before it."""
    distinct = sorted(set(sequences))
    if distinct and not distinct[0]:
        raise ValueError("a sequence needs at least one token")
    for before, sequence in pairwise([(), *distinct]):
        yield sequence, _shared_length(before, sequence)


def _shared_length(a: TokenIds, b: TokenIds) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class PackedLayout:
    """The attention layout of packed sequences: each tail attends to its own sequence, causally.

    Tails of similar length are computed together, so that little is padded.
    """

    def __init__(self, tails: Sequence[Tail], device: torch.device) -> None:
        by_size = sorted(tails, key=_size)
        self._blocks = [_Block(list(block), device) for _, block in groupby(by_size, key=_size)]
        places = torch.cat([block.places_N for block in self._blocks])
        self._row_order_N = torch.argsort(places)

    def attend(self, layer: int, query_HND: Tensor, key_KND: Tensor, value_KND: Tensor, scaling: float) -> Tensor:
        outputs = [block.attend(query_HND, key_KND, value_KND, scaling) for block in self._blocks]
        return torch.cat(outputs, dim=1).index_select(1, self._row_order_N)


class _Block:
    """Tails of similar length, as dense index tables [B, T] of queries and [B, S] of keys, padded at the end."""

    def __init__(self, tails: Sequence[Tail], device: torch.device) -> None:
        self._query_BT = _padded([t.places[t.shared :] for t in tails], device)
        self._key_BS = _padded([t.places for t in tails], device)
        shared_B = torch.tensor([t.shared for t in tails], device=device)
        length_B = torch.tensor([t.length for t in tails], device=device)
        steps_T = torch.arange(self._query_BT.shape[1], device=device)
        self._real_BT = steps_T < length_B[:, None]
        # Keys stand in the order of their sequence, so this also hides the padding behind it.
        last_seen_BT = shared_B[:, None] + steps_T
        self._allowed_BTS = torch.arange(self._key_BS.shape[1], device=device) <= last_seen_BT[:, :, None]
        self._bias_B1MS: Tensor | None = None
        self.places_N = self._query_BT[self._real_BT]

    def attend(self, query_HND: Tensor, key_KND: Tensor, value_KND: Tensor, scaling: float) -> Tensor:
        """Outputs [H, N of this block, D], tail after tail."""
        if self._bias_B1MS is None:
            # One for all layers: each keeps its mask for the backward pass.
            share = query_HND.shape[0] // key_KND.shape[0]
            self._bias_B1MS = folded_bias(self._allowed_BTS, share, value_KND.dtype)
        out_BHTD = attend_folded(
            _gather(query_HND, self._query_BT),
            _gather(key_KND, self._key_BS),
            _gather(value_KND, self._key_BS),
            self._bias_B1MS,
            scaling,
        )
        return out_BHTD.transpose(0, 1)[:, self._real_BT]


def _size(tail: Tail) -> int:
    """Tails of one size differ at most by a factor of two in length."""
    return tail.length.bit_length()


def _padded(rows: Sequence[tuple[int, ...]], device: torch.device) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + (0,) * (longest - len(row)) for row in rows], device=device)


def _gather(states_HND: Tensor, index_BT: Tensor) -> Tensor:
    """[B, H, T, D]"""
    H, _, D = states_HND.shape
    return states_HND.index_select(1, index_BT.flatten()).view(H, *index_BT.shape, D).transpose(0, 1)
