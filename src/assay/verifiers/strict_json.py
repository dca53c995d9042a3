"""JSON without the liberties of ``json.loads``: one document, one meaning, plain values of bounded size.

Refused, although Python would accept it: duplicate keys (which one counts?), NaN and Infinity (not JSON),
numbers outside the range of a float64, lone surrogates (not text). Refused to stay bounded: more than
100 kB, or nesting deeper than 64.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

MAX_BYTES = 100_000
MAX_DEPTH = 64

_SURROGATE = re.compile("[\ud800-\udfff]")


class StrictJsonError(ValueError):
    """The text is not one strict JSON document; the message says why."""


def parse_strict(text: str) -> Any:
    """The document that is ``text`` but for surrounding white space. Raises StrictJsonError."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise StrictJsonError(f"{size} bytes, at most {MAX_BYTES} are read")
    text = text.strip()
    if not text:
        raise StrictJsonError("empty, expected one JSON document")
    if text.startswith("```"):
        raise StrictJsonError("a code fence, expected the JSON document alone")
    try:
        document = _DECODER.decode(text)
    except StrictJsonError:
        raise
    except RecursionError:
        raise StrictJsonError(f"nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise StrictJsonError(f"not one JSON document: {error}") from None
    _check_tree(document)
    return document


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise StrictJsonError(f"duplicate key {key!r}")
            seen.add(key)
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise StrictJsonError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise StrictJsonError(f"the number {text[:20]!r} overflows")
    return value


def _bounded_int(text: str) -> int:
    # Also keeps int() away from text so long that it takes quadratic time.
    if math.isinf(float(text)):
        raise StrictJsonError(f"the number {text[:20]!r}… overflows")
    return int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_pairs,
    parse_constant=_refuse_constant,
    parse_float=_finite_float,
    parse_int=_bounded_int,
)


def _check_tree(document: Any) -> None:
    """Depth and surrogates, without recursion. Depth counts containers: ``[]`` has depth 1."""
    stack: list[tuple[Any, int]] = [(document, 1)]
    while stack:
        value, depth = stack.pop()
        if isinstance(value, str):
            if _SURROGATE.search(value):
                raise StrictJsonError("a lone surrogate, which is not text")
        elif isinstance(value, dict | list):
            if depth > MAX_DEPTH:
                raise StrictJsonError(f"nested deeper than {MAX_DEPTH}")
            if isinstance(value, dict):
                stack.extend((key, depth + 1) for key in value)
            stack.extend((child, depth + 1) for child in (value.values() if isinstance(value, dict) else value))
