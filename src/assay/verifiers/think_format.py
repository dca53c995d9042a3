"""Verifier ``think_format``: ``<think>…</think>`` first, then an answer, and each tag once."""

from __future__ import annotations

from dataclasses import dataclass

from assay.types import Row, Verdict
from assay.verifiers.contract import Verifier, accept, reject

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Thinking:
    """A completion taken apart, both sides stripped of outer white space."""

    thinking: str
    answer: str


def think_format() -> Verifier:
    """Reward 1 or 0; looks at no gold, nor at what the thinking or the answer says."""

    def verify(row: Row, completion: str) -> Verdict:
        found = split_thinking(completion)
        return accept() if isinstance(found, Thinking) else reject(found)

    return verify


def split_thinking(completion: str) -> Thinking | str:
    """The two sides of a well-formed completion, or what is wrong with its form.

    White space may stand before the opening tag and around either side; a side of nothing but white space is empty.
    """
    for tag in (OPEN, CLOSE):
        if (count := completion.count(tag)) != 1:
            return f"expected {tag} once, found it {count} times"
    before, _, rest = completion.partition(OPEN)
    if before.strip():
        return f"expected {OPEN} at the start, but {before.strip()[:60]!r} stands before it"
    if CLOSE not in rest:
        return f"{CLOSE} stands before {OPEN}"
    thinking, _, answer = rest.partition(CLOSE)
    if not thinking.strip():
        return "nothing is thought between the tags"
    if not answer.strip():
        return f"no answer follows {CLOSE}"
    return Thinking(thinking.strip(), answer.strip())
