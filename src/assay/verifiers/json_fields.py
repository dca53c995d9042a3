"""Verifier ``json_fields``: the share of an expected object's leaves that are exactly right."""

from __future__ import annotations

import math
from typing import Any

from assay.types import Row, Verdict
from assay.verifiers.contract import Verifier, accept, reject, unscorable
from assay.verifiers.strict_json import StrictJsonError, parse_strict

Path = tuple[str | int, ...]
"""Where a leaf is: keys of objects and indices of lists, from the root."""


def json_fields() -> Verifier:
    """Reward = leaves exactly right / all leaves of either object, so what is extra costs as much as what is missing.

    A leaf is a string, number, boolean, null, or an empty object or list. The answer is an object or a list
    (or one as JSON text, as Parquet files often hold it). A boolean is no number, 1.0 equals 1, strings must
    be equal to the last character. Correct: everything right and nothing extra.
    """

    def verify(row: Row, completion: str) -> Verdict:
        try:
            expected = flatten(_gold(row.answer))
        except (TypeError, ValueError) as error:
            return unscorable(str(error))
        try:
            got = flatten(parse_strict(completion))
        except StrictJsonError as error:
            return reject(str(error))
        return compare_leaves(expected, got)

    return verify


def compare_leaves(expected: dict[Path, Any], got: dict[Path, Any]) -> Verdict:
    """The graded verdict for two flattened documents; its reason names the first three leaves that differ."""
    paths = [*expected, *(path for path in got if path not in expected)]
    wrong = [p for p in paths if p not in got or p not in expected or not same_leaf(expected[p], got[p])]
    if not wrong:
        return accept()
    shown = ", ".join(_difference(path, expected, got) for path in wrong[:3])
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    right = len(paths) - len(wrong)
    return reject(f"{right} of {len(paths)} leaves right; {shown}{more}", right / len(paths))


def flatten(document: Any) -> dict[Path, Any]:
    """Leaves by path. Raises TypeError for a value that JSON does not have, ValueError for NaN and infinity."""
    leaves: dict[Path, Any] = {}
    stack: list[tuple[Path, Any]] = [((), document)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict) and value:
            stack.extend(((*path, _text_key(key)), child) for key, child in reversed(value.items()))
        elif isinstance(value, list | tuple) and value:
            stack.extend(((*path, i), child) for i, child in reversed(list(enumerate(value))))
        elif value is None or isinstance(value, str | bool | int | float | dict | list | tuple):
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"the answer holds {value} at {show_path(path)}, which is not JSON")
            leaves[path] = value
        else:
            raise TypeError(f"the answer holds a {type(value).__name__} at {show_path(path)}, which is not JSON")
    return leaves


def same_leaf(expected: Any, got: Any) -> bool:
    """Equal as JSON: numbers by value, but a boolean is no number and an empty list is no empty object."""
    numbers = (int, float)
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, numbers) and isinstance(got, numbers):
        return expected == got
    if isinstance(expected, list | tuple):
        return isinstance(got, list | tuple)
    return type(expected) is type(got) and bool(expected == got)


def show_path(path: Path) -> str:
    """``lines[0].item``; the root is ``the root``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "the root"


def _gold(answer: Any) -> Any:
    if isinstance(answer, str):
        try:
            answer = parse_strict(answer)
        except StrictJsonError as error:
            raise ValueError(f"the answer is text that is not JSON ({error}); expected an object or a list") from None
    if not isinstance(answer, dict | list | tuple):
        raise TypeError(f"the answer must be an object or a list, got {type(answer).__name__}")
    return answer


def _text_key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"the answer has the key {key!r}, but the keys of JSON objects are strings")
    return key


def _difference(path: Path, expected: dict[Path, Any], got: dict[Path, Any]) -> str:
    where = show_path(path)[:60]
    if path not in got:
        return f"{where} is missing"
    if path not in expected:
        return f"{where} is extra"
    return f"{where}: expected {repr(expected[path])[:60]}, got {repr(got[path])[:60]}"
