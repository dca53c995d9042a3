"""assay score: verdicts for given completions, one JSON line out per line in."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.cli.options import parse_args
from assay.errors import DataError
from assay.types import Row, Verdict


def score(
    file: Annotated[Path, typer.Argument(help='Lines of {"prompt", "completion", "answer", further columns}.')],
    verifier: Annotated[str, typer.Option(help="A verifier's name, or module:function.")],
    args: Annotated[str, typer.Option(help="The verifier's arguments, as JSON.")] = "{}",
) -> None:
    """Score given completions: for each line one JSON line with reward, status, correct, reason, ms, components."""
    from assay.verifiers.composition import Composite, Part
    from assay.verifiers.registry import build_verifier

    # A user's function that prints must not break the lines on stdout.
    with contextlib.redirect_stdout(sys.stderr):
        verify = Composite([Part(verifier, build_verifier(verifier, parse_args(args)))])
    for row, completion in _read(file):
        with contextlib.redirect_stdout(sys.stderr):
            verify.check(row)
            verdict = verify(row, completion)
        print(to_json(verdict))


def to_json(verdict: Verdict) -> str:
    """A verdict as one line of JSON; NaN as null."""
    return json.dumps(
        {
            "reward": _number(verdict.reward),
            "status": verdict.status,
            "correct": verdict.correct,
            "reason": verdict.reason,
            "ms": round(verdict.milliseconds, 3),
            "components": {name: _number(value) for name, value in verdict.components.items()},
        },
        allow_nan=False,
    )


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _read(file: Path) -> Iterator[tuple[Row, str]]:
    if not file.is_file():
        raise DataError(f"there is no file {file.absolute()}")
    found = False
    # Split at newlines alone: JSON strings may hold other line separators.
    for number, line in enumerate(file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            found = True
            yield _row(f"{file}, line {number}", f"{file.name}:{number}", line)
    if not found:
        raise DataError(f"{file.absolute()} is empty; expected lines of JSON with prompt, completion and answer")


def _row(where: str, row_id: str, line: bytes) -> tuple[Row, str]:
    try:
        fields = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise DataError(f"{where}: expected an object, got {type(fields).__name__}")
    completion, prompt = fields.pop("completion", None), fields.pop("prompt", "")
    if not isinstance(completion, str):
        raise DataError(f"{where}: 'completion' must be text, got {_kind(completion)}")
    # Without an answer the verifier decides: `json` needs none, for others the row is unscorable.
    return Row(row_id, _prompt(where, prompt), fields.pop("answer", None), fields), completion


def _prompt(where: str, prompt: Any) -> str | tuple[dict[str, str], ...]:
    if isinstance(prompt, str):
        return prompt
    messages = prompt if isinstance(prompt, list) else [prompt]
    if not all(isinstance(m, dict) and all(isinstance(v, str) for v in m.values()) for m in messages):
        raise DataError(f"{where}: 'prompt' must be text or a list of chat messages, got {_kind(prompt)}")
    return tuple(messages)


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
