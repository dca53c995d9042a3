"""Verifier ``repetition``: less reward the more of a text's n-grams it has said before."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from assay.types import Row, Verdict
from assay.verifiers.contract import Verifier, accept, reject

_PIECE = re.compile(r"[^\W\d_]{1,8}|[^\W]|[^\w\s]")
"""Up to eight letters, one digit, or one other sign: a loop without spaces falls into pieces that repeat too."""


def repetition(
    *, n: Annotated[int, Field(ge=1, le=100)] = 4, allowed: Annotated[float, Field(ge=0, lt=1)] = 0.0
) -> Verifier:
    """Reward = min(1, (1 - repeated share) / (1 - allowed)). Looks at no gold.

    The repeated share is 1 - different n-grams / all n-grams, 0 for a text shorter than n pieces; a share up to
    ``allowed`` costs nothing, so that plain text, in which a few n-grams come back, does not differ by it.
    """

    def verify(row: Row, completion: str) -> Verdict:
        share = repeated_share(completion, n)
        if share <= allowed:
            return accept()
        return reject(f"{share:.0%} of the {n}-grams are repetitions", (1 - share) / (1 - allowed))

    return verify


def repeated_share(text: str, n: int) -> float:
    """1 - different n-grams / all n-grams of the text's pieces; 0 where there is no n-gram."""
    pieces = _PIECE.findall(text)
    total = len(pieces) - n + 1
    if total < 1:
        return 0.0
    return 1 - len({tuple(pieces[i : i + n]) for i in range(total)}) / total
