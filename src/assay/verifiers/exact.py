"""Verifier ``exact``: the completion, stripped of surrounding white space, is the answer."""

from __future__ import annotations

from assay.types import Row, Verdict
from assay.verifiers.contract import Verifier, accept, reject, unscorable


def exact(*, case_sensitive: bool = True, after: str = "") -> Verifier:
    """Reward 1 or 0. The answer is a string or a number; ``case_sensitive=false`` compares casefolded.

    With ``after`` (for example ``</think>``) only the text behind that mark is judged, and the mark must stand in
    the completion exactly once: nothing before it counts, and no second one moves the boundary.
    """

    def verify(row: Row, completion: str) -> Verdict:
        answer = row.answer
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            return unscorable(f"the answer must be a string or a number, got {type(answer).__name__}")
        expected = str(answer).strip()
        if not expected:
            return unscorable("the answer is empty: silence would be right")
        if after and (count := completion.count(after)) != 1:
            return reject(f"expected {after!r} once, found it {count} times")
        got = (completion.partition(after)[2] if after else completion).strip()
        if got == expected or (not case_sensitive and got.casefold() == expected.casefold()):
            return accept()
        return reject(f"expected {expected[:100]!r}, got {got[:100]!r}")

    return verify
