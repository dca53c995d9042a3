"""Built-in data: addition of two numbers of the same width, ``37+85=`` with the answer ``122``.

A pair of operands is held out or not by its hash, whatever the seed and whichever comes first: ``85+37``
is held out with ``37+85``. Held-out pairs appear in neither training split; ``sft`` and ``train`` draw from
the same pairs and so share some.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping

from assay.errors import DataError
from assay.types import Row

OPTIONS: Mapping[str, tuple[str, ...] | range] = {
    "split": ("train", "sft", "heldout"),
    "digits": range(1, 10),
    "rows": range(1, 100_001),
    "seed": range(2**32),
}
DEFAULT_ROWS = {"train": 2000, "sft": 20_000, "heldout": 200}
_HELD_OUT_PER_CENT = 10
_FEW_PAIRS = 1_000_000
"""Up to so many pairs they are counted, to refuse more distinct rows than there are."""


def addition(*, split: str, digits: int = 2, rows: int | None = None, seed: int = 0) -> list[Row]:
    """Rows of one split. ``train`` and ``heldout`` never repeat a pair; ``sft`` draws with replacement.

    Raises DataError if more distinct rows are asked for than there are.
    """
    count = DEFAULT_ROWS[split] if rows is None else rows
    distinct = split != "sft"
    if distinct:
        count = _at_most_all(count, split, digits, given=rows is not None)
    low, high = _operands(digits)
    rng = random.Random(f"addition/{split}/{digits}/{seed}")
    seen: set[tuple[int, int]] = set()
    result: list[Row] = []
    while len(result) < count:
        pair = rng.randint(low, high), rng.randint(low, high)
        if is_held_out(*pair) == (split == "heldout") and not (distinct and pair in seen):
            seen.add(pair)
            result.append(Row(f"addition/{split}/{len(result)}", f"{pair[0]}+{pair[1]}=", str(sum(pair))))
    return result


def is_held_out(a: int, b: int) -> bool:
    """Whether the pair, in either order, belongs to the held-out tenth."""
    digest = hashlib.sha256(f"{min(a, b)}+{max(a, b)}".encode()).digest()
    return int.from_bytes(digest[:8]) % 100 < _HELD_OUT_PER_CENT


def _operands(digits: int) -> tuple[int, int]:
    """The smallest and the largest operand: exactly ``digits`` digits, 0 included for one digit."""
    return (10 ** (digits - 1) if digits > 1 else 0), 10**digits - 1


def _at_most_all(count: int, split: str, digits: int, *, given: bool) -> int:
    low, high = _operands(digits)
    if (high - low + 1) ** 2 > _FEW_PAIRS:
        return count
    numbers = range(low, high + 1)
    available = sum(is_held_out(a, b) == (split == "heldout") for a in numbers for b in numbers)
    if given and count > available:
        raise DataError(
            f"builtin:addition: rows={count} asked for, but split={split} has {available} distinct pairs of "
            f"{digits}-digit numbers; ask for fewer rows or more digits"
        )
    return min(count, available)
