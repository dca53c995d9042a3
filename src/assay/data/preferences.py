"""Preference rows: a prompt, a completion that is preferred, and one that is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from assay.data.sources import load_rows
from assay.errors import DataError
from assay.types import Row


@dataclass(frozen=True, slots=True)
class Preference:
    """One row; both completions as text without an end token."""

    row: Row
    chosen: str
    rejected: str


def load_preferences(uri: str) -> list[Preference]:
    """All rows of a source, checked: ``prompt``, ``chosen`` and ``rejected``; an ``answer`` may be missing.

    A completion is text (which may be empty), or chat messages: the assistant's, after those of the prompt or
    alone. Raises DataError that names the row at fault.
    """
    rows = load_rows(uri, answer_required=False)
    return [Preference(row, _completion(row, "chosen"), _completion(row, "rejected")) for row in rows]


def _completion(row: Row, column: str) -> str:
    if column not in row.columns:
        known = ", ".join(["prompt", *row.columns])
        raise DataError(
            f"row {row.row_id} has no {column!r}; preference rows need prompt, chosen and rejected, and it has {known}"
        )
    value = row.columns[column]
    text = _last_message(row, column, value) if isinstance(value, list) else value
    if not isinstance(text, str):
        raise DataError(
            f"row {row.row_id}: {column!r} must be text, or chat messages that end with the assistant's, "
            f"got {repr(value)[:100]}"
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"row {row.row_id}: {column!r} holds a lone surrogate at character {error.start}") from None
    return text


def _last_message(row: Row, column: str, messages: list[Any]) -> Any:
    """The content of the assistant's message, or None if there is no such message at the end."""
    parts = [(m.get("role"), m.get("content")) if isinstance(m, dict) else (None, None) for m in messages]
    if not parts or parts[-1][0] != "assistant":
        return None
    prompt = [] if isinstance(row.prompt, str) else [(m["role"], m["content"]) for m in row.prompt]
    if parts[:-1] and parts[:-1] != prompt:
        raise DataError(
            f"row {row.row_id}: the {len(parts) - 1} messages of {column!r} before the last are not those of the "
            f"prompt; leave them out, or give the prompt as the same messages"
        )
    return parts[-1][1]
