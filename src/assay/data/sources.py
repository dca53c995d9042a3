"""Where rows come from: JSON Lines, Parquet, or a built-in generator, each named by one string."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import parse_qsl

import pyarrow
import pyarrow.parquet

from assay.data import addition, orders, word_problems
from assay.errors import DataError, did_you_mean
from assay.types import Message, Row


class Builtin(NamedTuple):
    """A generator, and what each of its options may be: a choice of names or a range of whole numbers."""

    generate: Callable[..., list[Row]]
    options: Mapping[str, tuple[str, ...] | range]


BUILTINS: dict[str, Builtin] = {
    "addition": Builtin(addition.addition, addition.OPTIONS),
    "orders": Builtin(orders.orders, orders.OPTIONS),
    "word_problems": Builtin(word_problems.word_problems, word_problems.OPTIONS),
}
_SCHEME = "builtin:"


def load_rows(uri: str, *, answer_required: bool = True) -> list[Row]:
    """All rows of a source, checked: ``rows.jsonl``, ``rows.parquet`` or ``builtin:NAME?split=…&rows=N``.

    Columns: ``prompt`` (text, or chat messages), ``answer``, and any others. Without ``answer_required`` a row that
    has none, or null, gets the answer None. Row ids are ``FILE:LINE``, or ``NAME/SPLIT/INDEX`` for built-in data.
    Raises DataError that names the line or row at fault.
    """
    if uri.startswith(_SCHEME):
        return _builtin_rows(uri)
    path = Path(uri).expanduser()
    if path.suffix.lower() not in _READERS:
        raise DataError(
            f"{uri}: the file name must end in {' or '.join(_READERS)}; other sources are "
            f"{', '.join(_SCHEME + name for name in BUILTINS)}"
        )
    if not path.is_file():
        raise DataError(
            f"there is no file {path.absolute()}; name one that exists, or built-in data: "
            f"{', '.join(_SCHEME + name for name in BUILTINS)}"
        )
    try:
        rows = [
            _row(f"{path.name}:{n}", f"{path}, {what} {n}", row, answer_required)
            for what, n, row in _READERS[path.suffix.lower()](path)
        ]
    except OSError as error:
        raise DataError(f"{path.absolute()} cannot be read: {error}") from error
    if not rows:
        raise DataError(f"{path.absolute()} is empty; a data set needs at least one row")
    return rows


def _read_jsonl(path: Path) -> Iterator[tuple[str, int, Any]]:
    # Split at newlines alone: JSON strings may hold other line separators. Blank lines count, but are no rows.
    for number, line in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            try:
                yield "line", number, json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number} is not JSON: {error}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _read_parquet(path: Path) -> Iterator[tuple[str, int, Any]]:
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path.absolute()} is not a Parquet file that can be read: {error}") from None
    number = 0
    for batch in table.to_batches():
        for row in batch.to_pylist():
            number += 1
            yield "row", number, row


_READERS: dict[str, Callable[[Path], Iterable[tuple[str, int, Any]]]] = {
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}


def _row(row_id: str, where: str, fields: Any, answer_required: bool) -> Row:
    required = ("prompt", "answer") if answer_required else ("prompt",)
    if not isinstance(fields, dict):
        raise DataError(f"{where}: expected an object with {' and '.join(required)}, got {type(fields).__name__}")
    for name in required:
        if name not in fields:
            raise DataError(f"{where} has no {name!r}; its columns: {', '.join(fields) or 'none'}")
    answer = fields.get("answer")
    if answer is None and answer_required:
        raise DataError(f"{where}: the answer is null; give every row one, or leave the row out")
    columns = {name: value for name, value in fields.items() if name not in ("prompt", "answer")}
    return Row(row_id, _prompt(where, fields["prompt"]), answer, columns)


def _prompt(where: str, prompt: Any) -> str | tuple[Message, ...]:
    if isinstance(prompt, str):
        return _text(where, prompt)
    if not isinstance(prompt, list):
        raise DataError(f"{where}: the prompt must be text or a list of chat messages, got {type(prompt).__name__}")
    if not prompt:
        raise DataError(f"{where}: the prompt is an empty list of messages")
    return tuple(_message(f"{where}, message {i}", message) for i, message in enumerate(prompt))


def _message(where: str, message: Any) -> Message:
    if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
        raise DataError(f'{where} of the prompt must be {{"role": text, "content": text}}, got {repr(message)[:100]}')
    # An empty system message is usual; what else is in a message is no part of the chat template's contract.
    content = message["content"]
    return {"role": message["role"], "content": _text(where, content) if content else ""}


def _text(where: str, text: str) -> str:
    if not text:
        raise DataError(f"{where}: the prompt is empty")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: the prompt holds a lone surrogate at character {error.start}") from None
    return text


def _builtin_rows(uri: str) -> list[Row]:
    name, _, query = uri.removeprefix(_SCHEME).partition("?")
    if name not in BUILTINS:
        raise DataError(f"there is no {_SCHEME}{name}{did_you_mean(name, BUILTINS)}; allowed: {', '.join(BUILTINS)}")
    builtin = BUILTINS[name]
    given: dict[str, str | int] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key in given:
            raise DataError(f"{uri}: {key} is given twice")
        given[key] = _option(uri, builtin, key, value)
    if "split" not in given:
        splits = "|".join(str(split) for split in builtin.options["split"])
        raise DataError(f"{uri} names no split; add {'&' if query else '?'}split={splits}")
    return builtin.generate(**given)


def _option(uri: str, builtin: Builtin, key: str, value: str) -> str | int:
    if key not in builtin.options:
        hint = did_you_mean(key, builtin.options)
        raise DataError(f"{uri}: there is no option {key!r}{hint}; allowed: {', '.join(builtin.options)}")
    allowed = builtin.options[key]
    if isinstance(allowed, range):
        if not (value.isascii() and value.isdigit() and len(value) < 20 and int(value) in allowed):
            raise DataError(f"{uri}: {key} must be a whole number from {allowed[0]} to {allowed[-1]}, got {value!r}")
        return int(value)
    if value not in allowed:
        raise DataError(f"{uri}: {key}={value!r}{did_you_mean(value, allowed)}; allowed: {', '.join(allowed)}")
    return value
