"""Several verifiers as one reward: the weighted sum, and one verdict that says which part found what."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.errors import VerifierError
from assay.types import Row, Status, Verdict
from assay.verifiers.contract import Verifier, crash, describe, unscorable
from assay.verifiers.user import UserVerifier

_SEVERITY: tuple[Status, ...] = ("ok", "wrong", "timeout", "unscorable", "crash")
"""From best to worst; the worst part's status is the whole's."""


@dataclass(frozen=True, slots=True)
class Part:
    """One verifier of a reward: its weight, the column that holds its gold, and its say."""

    name: str
    verifier: Verifier
    weight: float = 1.0
    answer: str = "answer"
    gate: bool = False
    """Unless this part is fully rewarded, the whole reward is 0."""
    counts: bool = True
    """Whether ``correct`` depends on it; a part that only shapes the reward does not count."""


class Composite:
    """reward = Σ weight · reward of the part, over the parts that apply to the row; 0 where a gate is not ``ok``.

    ``correct`` if every part that applies and counts says so. One part that crashed or could not score makes the
    whole reward NaN, gates or not: a sum without it would be another reward. A built-in part sees the prompt and
    its own gold, and no other column; the user's own functions see all columns. Of parts with the same name, the
    later ones are renamed (``exact``, ``exact_2``). Raises VerifierError for parts of which none counts, a weight that
    is not finite, and a gate that does not count.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if not math.isfinite(part.weight):
                raise VerifierError(f"verifier {part.name!r}: the weight must be a finite number, got {part.weight}")
            if part.gate and not part.counts:
                raise VerifierError(
                    f"verifier {part.name!r}: a gate decides what is correct, so it cannot have counts = false"
                )
        if parts and not any(part.counts for part in parts):
            raise VerifierError("no verifier counts, so nothing could be incorrect; leave out counts = false of one")
        self.parts = dict(zip(_unique([part.name for part in parts]), parts, strict=True))
        """The parts by unique name, as in a verdict's components."""

    def __call__(self, row: Row, completion: str) -> Verdict:
        """The verdict; never raises. Its milliseconds are wall-clock time of all parts together."""
        began = time.perf_counter()
        verdicts = {}
        for name, part in self.parts.items():
            verdict = _judge(part, row, completion)
            if verdict is not None:
                verdicts[name] = verdict
        return combine(verdicts, self.parts, (time.perf_counter() - began) * 1000)

    def check(self, row: Row) -> None:
        """Raise VerifierError if the row lacks a column that a part needs."""
        for name, part in self.parts.items():
            required = {part.answer}
            if isinstance(part.verifier, UserVerifier):
                required |= part.verifier.required_columns
            missing = sorted(required - {"answer", *row.columns})
            if missing:
                known = ", ".join(["answer", *row.columns])
                raise VerifierError(
                    f"row {row.row_id} has no column {missing[0]!r}, which verifier {name!r} needs; "
                    f"its columns: {known}"
                )

    def self_check(self, row: Row) -> tuple[str, ...]:
        """Why built-in parts could not grade this row, whatever the completion; empty if they all could."""
        self.check(row)
        found = []
        for name, part in self.parts.items():
            verdict = None if isinstance(part.verifier, UserVerifier) else _judge(part, row, "")
            if verdict is not None and math.isnan(verdict.reward):
                found.append(f"{name}: {verdict.reason}")
        return tuple(found)


def combine(verdicts: Mapping[str, Verdict], parts: Mapping[str, Part], milliseconds: float) -> Verdict:
    """One verdict for the parts' verdicts, by name. No verdict at all is unscorable."""
    components = {name: verdict.reward for name, verdict in verdicts.items()}
    if not verdicts:
        verdicts = {"": unscorable("no verifier applies to this row")}
    status = max((verdict.status for verdict in verdicts.values()), key=_SEVERITY.index)
    if status == "ok" and not all(_right(verdict) for verdict in verdicts.values()):
        status = "wrong"
    counted = [verdict for name, verdict in verdicts.items() if name in parts and parts[name].counts]
    graded = status not in ("unscorable", "crash")
    correct = graded and bool(counted) and all(_right(verdict) for verdict in counted)
    reward = _weighted_sum(components, parts)
    if graded and any(parts[name].gate and not _right(verdict) for name, verdict in verdicts.items()):
        reward = 0.0
    reasons = [
        f"{name}: {verdict.reason or verdict.status}" if name else verdict.reason
        for name, verdict in verdicts.items()
        if not _right(verdict)
    ]
    return Verdict(reward, status, correct, "; ".join(reasons), milliseconds, components)


def _right(verdict: Verdict) -> bool:
    return verdict.status == "ok" and verdict.correct


def _weighted_sum(components: Mapping[str, float], parts: Mapping[str, Part]) -> float:
    """NaN where any part is NaN or nothing is left. Clamped to what a float64 holds."""
    largest = sys.float_info.max
    terms = [max(-largest, min(largest, parts[name].weight * value)) for name, value in components.items()]
    if not terms or any(math.isnan(value) for value in components.values()):
        return math.nan
    try:
        return math.fsum(terms)
    except OverflowError:
        return math.copysign(largest, sum(term / largest for term in terms))


def _judge(part: Part, row: Row, completion: str) -> Verdict | None:
    columns: Mapping[str, Any] = row.columns
    if part.answer != "answer" and part.answer not in columns:
        return unscorable(f"the row has no column {part.answer!r}")
    answer = row.answer if part.answer == "answer" else columns[part.answer]
    visible = columns if isinstance(part.verifier, UserVerifier) else {}
    try:
        return part.verifier(Row(row.row_id, row.prompt, answer, visible), completion)
    # A bug in a verifier must not look like a wrong answer, nor end a run.
    except Exception as error:
        return crash(f"a bug in the verifier: {describe(error)}")


def _unique(names: Sequence[str]) -> list[str]:
    unique: list[str] = []
    for name in names:
        candidate, count = name, 1
        while candidate in unique:
            count += 1
            candidate = f"{name}_{count}"
        unique.append(candidate)
    return unique
