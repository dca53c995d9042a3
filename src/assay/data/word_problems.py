"""Built-in data: arithmetic word problems of one to three steps with small numbers, the answer a whole number.

A problem is a chain: how it opens, what happens, what is asked. It is held out or not by the hash of that chain
and its numbers, whatever the names, wording and seed; held-out texts also use names and things that no training
text has. ``sft`` rows carry a worked solution in the column ``response``; ``sft`` and ``train`` draw from the same
chains and so share some.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from assay.errors import DataError
from assay.types import Message, Row

OPTIONS: Mapping[str, tuple[str, ...] | range] = {
    "split": ("train", "sft", "heldout"),
    "steps": ("mixed", "1", "2", "3"),
    "rows": range(1, 20_001),
    "seed": range(2**32),
}
DEFAULT_ROWS = {"train": 2000, "sft": 400, "heldout": 250}
INSTRUCTION = "Think step by step between <think> and </think>. Then write the answer as one number."
LARGEST = 30
"""No number on the way is greater."""
MIX = (1, 1, 1, 2, 2, 2, 2, 2, 2, 3)
"""Calculations that a problem of ``steps=mixed`` may take, each as likely as the next while there are new ones."""
_HELD_OUT_PER_CENT = 20
_TRIES = 200_000
"""Draws after which there are no further distinct problems."""


@dataclass(frozen=True, slots=True)
class Side:
    """The words of one split: names, countable things (plural), and what holds them."""

    names: tuple[str, ...]
    things: tuple[str, ...]
    holders: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TRAIN = Side(
    _words("Tom Anna Ben Maria Paul Max Sam Jack Lily Tim Adam Peter Mark David John Luke Alice Henry Simon Jane"),
    _words("apples books coins cards pens stamps shells cookies eggs balls toys flowers stones keys cups plates seeds"),
    _words("boxes bags jars packs"),
)
HELDOUT = Side(
    _words("Frank Robert Sarah George Mary James Emily Martin"),
    _words("oranges pencils buttons photos bottles nuts tickets candles"),
    _words("baskets trays"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """One link of the chain: its numbers, its sentence (a template of the words), and its lines of thinking."""

    kind: str
    numbers: tuple[int, ...]
    text: str
    lines: tuple[str, ...]
    value: int
    """The number that is known after it."""

    @property
    def steps(self) -> int:
        return len(self.lines)


Maker = Callable[[random.Random, int], Part]
"""Makes a part from the number that is known before it."""


def _has(rng: random.Random, _: int) -> Part:
    n = rng.randint(2, 12)
    text = rng.choice(("{name} has {n} {things}.", "There are {n} {things} on the table of {name}."))
    return Part("has", (n,), text.replace("{n}", str(n)), (), n)


def _packed(rng: random.Random, _: int) -> Part:
    a, b = rng.randint(2, 5), rng.randint(2, 5)
    text = rng.choice(
        (
            f"{{name}} has {a} {{holders}} with {b} {{things}} in each.",
            f"{{name}} buys {a} {{holders}}. In each there are {b} {{things}}.",
        )
    )
    return Part("packed", (a, b), text, (f"Each: {a}*{b}={a * b}",), a * b)


def _two_places(rng: random.Random, _: int) -> Part:
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    text = rng.choice(
        (
            f"{{name}} has {a} {{things}} at home and {b} at school.",
            f"{{name}} finds {a} {{things}} in the morning and {b} in the evening.",
        )
    )
    return Part("two places", (a, b), text, (f"Both: {a}+{b}={a + b}",), a + b)


def _gain(rng: random.Random, value: int) -> Part:
    k = rng.randint(2, 9)
    text = rng.choice(
        (f"{{name}} buys {k} more.", f"A friend brings {k} more {{things}}.", f"{{name}} finds {k} more.")
    )
    return Part("gain", (k,), text, (f"More: {value}+{k}={value + k}",), value + k)


def _loss(rng: random.Random, value: int) -> Part:
    k = rng.randint(2, 9)
    text = rng.choice((f"{{name}} gives {k} away.", f"{{name}} loses {k} of them.", f"{{name}} sells {k} {{things}}."))
    return Part("loss", (k,), text, (f"Less: {value}-{k}={value - k}",), value - k)


def _half(rng: random.Random, value: int) -> Part:
    text = rng.choice(("{name} gives half of them away.", "Half of them get lost."))
    return Part("half", (), text, (f"Half: {value}/2={_exact(value, 2)}",), _exact(value, 2))


def _double(rng: random.Random, value: int) -> Part:
    text = rng.choice(("Then {name} gets as many again.", "A week later {name} has twice as many."))
    return Part("double", (), text, (f"Twice: {value}*2={value * 2}",), value * 2)


def _gain_packed(rng: random.Random, value: int) -> Part:
    a, b = rng.randint(2, 4), rng.randint(2, 4)
    text = f"{{name}} buys {a} {{holders}} with {b} {{things}} in each."
    lines = (f"Each: {a}*{b}={a * b}", f"More: {value}+{a * b}={value + a * b}")
    return Part("gain packed", (a, b), text, lines, value + a * b)


def _count(rng: random.Random, value: int) -> Part:
    text = rng.choice(("How many {things} does {name} have now?", "How many {things} are there in the end?"))
    return Part("count", (), text, (), value)


def _share(rng: random.Random, value: int) -> Part:
    k = rng.randint(2, 5)
    text = rng.choice(
        (
            f"{{name}} shares the {{things}} equally among {k} friends. How many does each friend get?",
            f"{{name}} puts the same number into each of {k} {{holders}}. How many {{things}} are in each?",
        )
    )
    return Part("share", (k,), text, (f"Shared: {value}/{k}={_exact(value, k)}",), _exact(value, k))


def _price(rng: random.Random, value: int) -> Part:
    k = rng.randint(2, 5)
    text = rng.choice(
        (
            f"{{name}} sells all of the {{things}} for {k} dollars each. How many dollars does {{name}} get?",
            f"Each one costs {k} dollars. How many dollars do all the {{things}} cost?",
        )
    )
    return Part("price", (k,), text, (f"Price: {value}*{k}={value * k}",), value * k)


def _missing(rng: random.Random, value: int) -> Part:
    goal = value + rng.randint(2, 9)
    text = f"{{name}} wants to have {goal} {{things}}. How many more are needed?"
    return Part("missing", (goal,), text, (f"Needed: {goal}-{value}={goal - value}",), goal - value)


def _together(rng: random.Random, value: int) -> Part:
    k = rng.randint(2, 6)
    text = f"{{other}} has {k} more than {{name}}. How many {{things}} do they have together?"
    lines = (f"{{other}}: {value}+{k}={value + k}", f"Both: {value}+{value + k}={2 * value + k}")
    return Part("together", (k,), text, lines, 2 * value + k)


def _exact(value: int, divisor: int) -> int:
    """The quotient, or -1 (which no problem keeps) where it is none."""
    return -1 if value % divisor else value // divisor


OPENINGS: tuple[Maker, ...] = (_has, _has, _packed, _two_places)
EVENTS: tuple[Maker, ...] = (_gain, _loss, _half, _double, _gain_packed)
QUESTIONS: tuple[Maker, ...] = (_count, _count, _share, _price, _missing, _together)


def word_problems(*, split: str, steps: str = "mixed", rows: int | None = None, seed: int = 0) -> list[Row]:
    """Rows of one split, no problem twice. ``steps``: how many calculations each takes; mixed: one to three.

    Raises DataError if more are asked for than there are.
    """
    count = DEFAULT_ROWS[split] if rows is None else rows
    side = HELDOUT if split == "heldout" else TRAIN
    rng = random.Random(f"word_problems/{split}/{steps}/{seed}")
    seen: set[str] = set()
    result: list[Row] = []
    tries = 0
    while len(result) < count:
        wanted = rng.choice(MIX) if steps == "mixed" else int(steps)
        chain = _chain(rng, wanted)
        key = describe(chain)
        if is_held_out(key) == (split == "heldout") and key not in seen:
            seen.add(key)
            result.append(_row(f"word_problems/{split}/{len(result)}", chain, side, rng, split))
            tries = 0
        tries += 1
        if tries > _TRIES:
            raise DataError(
                f"builtin:word_problems: rows={count} asked for, but split={split}, steps={steps} has about "
                f"{len(result)} distinct problems; ask for fewer rows"
            )
    return result


def describe(chain: tuple[Part, ...]) -> str:
    """What makes two problems the same: the kinds of the parts and their numbers, not names or wording."""
    return " | ".join(f"{part.kind} {' '.join(map(str, part.numbers))}".strip() for part in chain)


def is_held_out(key: str) -> bool:
    """Whether the problem belongs to the held-out fifth."""
    digest = hashlib.sha256(key.encode()).digest()
    return int.from_bytes(digest[:8]) % 100 < _HELD_OUT_PER_CENT


def _chain(rng: random.Random, steps: int) -> tuple[Part, ...]:
    """Parts of ``steps`` calculations in all, every number on the way whole and from 1 to LARGEST."""
    while True:
        parts = [rng.choice(OPENINGS)(rng, 0)]
        for _ in range(rng.randint(0, 2)):
            parts.append(rng.choice(EVENTS)(rng, parts[-1].value))
        parts.append(rng.choice(QUESTIONS)(rng, parts[-1].value))
        if sum(part.steps for part in parts) == steps and all(1 <= part.value <= LARGEST for part in parts):
            return tuple(parts)


def _row(row_id: str, chain: tuple[Part, ...], side: Side, rng: random.Random, split: str) -> Row:
    name, other = rng.sample(side.names, 2)
    words = {"name": name, "other": other, "things": rng.choice(side.things), "holders": rng.choice(side.holders)}
    text = " ".join(part.text for part in chain).format(**words)
    prompt: tuple[Message, ...] = (
        {"role": "system", "content": INSTRUCTION},
        {"role": "user", "content": text},
    )
    answer = chain[-1].value
    columns: dict[str, str | int] = {"steps": sum(part.steps for part in chain)}
    if split == "sft":
        lines = [line.format(**words) for part in chain for line in part.lines]
        columns["response"] = f"<think>\n{chr(10).join(lines)}\n</think>\n{answer}"
    return Row(row_id, prompt, answer, columns)
