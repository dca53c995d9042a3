"""What a verifier is, and how one states its judgement."""

from __future__ import annotations

import math
from collections.abc import Callable

from assay.types import Row, Verdict

Verifier = Callable[[Row, str], Verdict | None]
"""Judges one completion of one row. None: it does not apply to this row, as in TRL.

Total and deterministic: any string gets a verdict, the same one every time. The gold is looked at before
the completion, so a row that cannot be graded is ``unscorable`` whatever the model writes.
"""

REASON_LENGTH = 300
"""Characters of a reason that are kept: a completion may be 100 kB, and reasons quote it."""


def accept() -> Verdict:
    """Full reward."""
    return Verdict(1.0, "ok", True)


def reject(reason: str, reward: float = 0.0) -> Verdict:
    """Graded, and less than right."""
    return Verdict(reward, "wrong", False, clip(reason))


def unscorable(reason: str) -> Verdict:
    """The row's gold cannot be graded against."""
    return Verdict(math.nan, "unscorable", False, clip(reason))


def crash(reason: str) -> Verdict:
    """The verifier itself failed."""
    return Verdict(math.nan, "crash", False, clip(reason))


def clip(text: str) -> str:
    """Shorten, and escape what UTF-8 cannot store: completions may hold lone surrogates."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= REASON_LENGTH else text[: REASON_LENGTH - 1] + "…"


def describe(error: BaseException) -> str:
    """``ValueError: message``, even of an exception whose message cannot be made."""
    try:
        message = str(error)
    except Exception as second:
        message = f"(its message raised {type(second).__name__})"
    return f"{type(error).__name__}: {message}"
