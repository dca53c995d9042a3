"""Packing without padding: each prefix once, its branches behind it.

A tree is a prefix (a group's prompt, or what several prompts have in common) and branches that each attend to
the prefix and to themselves, at positions that continue from the prefix. Several trees make one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from assay.models.attention import causal_attention


@dataclass(frozen=True, slots=True)
class Tree:
    """Token ids of a prefix (at least one token) and of its branches (which may be empty)."""

    prefix: tuple[int, ...]
    branches: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> int:
        return len(self.prefix) + sum(map(len, self.branches))


@dataclass(frozen=True, slots=True)
class Span:
    """Where one tree stands in the row: its prefix at ``start``, its branches one after another behind it."""

    start: int
    prefix: int
    branches: tuple[int, ...]

    @property
    def branch_starts(self) -> list[int]:
        starts, at = [], self.start + self.prefix
        for length in self.branches:
            starts.append(at)
            at += length
        return starts


class PackedLayout:
    """The attention layout of packed trees: only allowed squares are computed."""

    def __init__(self, spans: Sequence[Span], device: torch.device) -> None:
        self.spans = tuple(spans)
        self._gather = [_branch_index(span, device) for span in self.spans]

    def attend(self, layer: int, query_HND: Tensor, key_KND: Tensor, value_KND: Tensor, scaling: float) -> Tensor:
        pieces = []
        for span, (index_BT, real_BT) in zip(self.spans, self._gather, strict=True):
            prefix = slice(span.start, span.start + span.prefix)
            prefix_key, prefix_value = key_KND[:, prefix], value_KND[:, prefix]
            pieces.append(causal_attention(query_HND[None, :, prefix], prefix_key[None], prefix_value[None], scaling)[0])
            if index_BT.numel():
                out_BHTD = causal_attention(
                    query_HND[:, index_BT].transpose(0, 1),
                    _behind(prefix_key, key_KND[:, index_BT]),
                    _behind(prefix_value, value_KND[:, index_BT]),
                    scaling,
                )
                pieces.append(out_BHTD.permute(1, 0, 2, 3)[:, real_BT])
        return torch.cat(pieces, dim=1)


@dataclass(frozen=True, slots=True)
class PackedRow:
    """One row for the model, [1, N], and where each branch's next-token predictions come from."""

    input_ids: Tensor
    position_ids: Tensor
    layout: PackedLayout
    spans: tuple[Span, ...]


def pack(trees: Sequence[Tree], device: torch.device) -> PackedRow:
    """Lay the trees out in one row. Raises ValueError for a tree with an empty prefix."""
    ids: list[int] = []
    positions: list[int] = []
    spans = []
    for tree in trees:
        if not tree.prefix:
            raise ValueError("a tree needs a prefix of at least one token")
        spans.append(Span(len(ids), len(tree.prefix), tuple(map(len, tree.branches))))
        ids += tree.prefix
        positions += range(len(tree.prefix))
        for branch in tree.branches:
            ids += branch
            positions += range(len(tree.prefix), len(tree.prefix) + len(branch))
    return PackedRow(
        torch.tensor([ids], device=device),
        torch.tensor([positions], device=device),
        PackedLayout(spans, device),
        tuple(spans),
    )


def prefix_trees(sequences: Sequence[tuple[int, ...]]) -> list[Tree]:
    """Sorted sequences as trees, one for each first token: what its sequences have in common stands once.

    Branches follow the order of ``sequences``.
    """
    trees = []
    for _, group in groupby(sequences, key=lambda sequence: sequence[0]):
        members = list(group)
        common = _common_prefix_length(members[0], members[-1])
        trees.append(Tree(members[0][:common], tuple(s[common:] for s in members)))
    return trees


def sequence_index(row: PackedRow) -> tuple[Tensor, Tensor]:
    """Where each branch's whole sequence (its tree's prefix, then itself) stands in the row: [B, L], lengths [B]."""
    places = []
    for span in row.spans:
        prefix = list(range(span.start, span.start + span.prefix))
        for start, length in zip(span.branch_starts, span.branches, strict=True):
            places.append(prefix + list(range(start, start + length)))
    longest = max(map(len, places))
    device = row.input_ids.device
    index_BL = torch.tensor([p + [0] * (longest - len(p)) for p in places], device=device)
    return index_BL, torch.tensor([len(p) for p in places], device=device)


def _common_prefix_length(first: tuple[int, ...], last: tuple[int, ...]) -> int:
    """Tokens that the first and the last of sorted sequences share at their start, and so all between them."""
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def _branch_index(span: Span, device: torch.device) -> tuple[Tensor, Tensor]:
    """Positions of the branches' tokens, [B, T], and which of them are real; padding points at the prefix.

    Padding stands at a branch's end, where causality hides it from every real token.
    """
    longest = max(span.branches, default=0)
    lengths_B = torch.tensor(span.branches, dtype=torch.long, device=device)
    offsets_T = torch.arange(longest, device=device)
    starts_B = torch.tensor(span.branch_starts, dtype=torch.long, device=device)
    real_BT = offsets_T < lengths_B[:, None]
    index_BT = torch.where(real_BT, starts_B[:, None] + offsets_T, span.start)
    return index_BT, real_BT


def _behind(prefix_KSD: Tensor, own_KBTD: Tensor) -> Tensor:
    """[B, K, S + T, D]: the shared prefix, seen by every branch, and behind it the branch's own."""
    own_BKTD = own_KBTD.transpose(0, 1)
    return torch.cat([prefix_KSD.expand(own_BKTD.shape[0], -1, -1, -1), own_BKTD], dim=2)
