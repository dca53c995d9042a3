"""The run folder on disk: where everything lies, how it is read, and how it is cut back on resume."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from assay.errors import CheckpointError

UNFINISHED = ".writing-"
"""Prefix of a file or folder that has not got its final name yet."""

ROLLOUT_SCHEMA_VERSION = 1

ROLLOUT_NAME = re.compile(r"step-(\d{6,})\.parquet")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths and records of one run. Nothing is created here, and reading never changes a file."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved recipe."""
        return self.path / "config.toml"

    @property
    def metrics(self) -> Path:
        """One JSON object a step."""
        return self.path / "metrics.jsonl"

    @property
    def rollouts(self) -> Path:
        """The folder of ``step-000012.parquet``, one row per completion."""
        return self.path / "rollouts"

    @property
    def alarms(self) -> Path:
        """One JSON object an alarm."""
        return self.path / "alarms.jsonl"

    @property
    def tensorboard(self) -> Path:
        """The folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """The folder of ``step-000010/``."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The last good model, a Hugging Face folder."""
        return self.path / "model"

    @property
    def report(self) -> Path:
        """The static report."""
        return self.path / "report.html"

    @property
    def evaluation(self) -> Path:
        """Held-out results: before, during, after."""
        return self.path / "evaluation.json"

    @property
    def environment(self) -> Path:
        """Versions and hardware."""
        return self.path / "environment.json"

    def rollout_file(self, step: int) -> Path:
        """Where the completions of ``step`` lie."""
        return self.rollouts / f"step-{step:06d}.parquet"

    def read_metrics(self) -> list[dict[str, Any]]:
        """The steps' records in order; empty before the first. A torn last line (from a kill) is left out.

        Raises CheckpointError for a folder that is no run, and for a line that is broken in any other place.
        """
        self._check()
        return read_json_lines(self.metrics)

    def read_rollouts(self, step: int) -> list[dict[str, Any]]:
        """The completions of one step, with ``prompt`` as text or messages, ``answer`` and ``components`` decoded.

        Raises CheckpointError for a folder that is no run, and for a step without a file.
        """
        self._check()
        file = self.rollout_file(step)
        if not file.is_file():
            known = self.rollout_steps()
            have = f"steps {known[0]} to {known[-1]}" if known else "no step"
            raise CheckpointError(f"{file} does not exist: this run has completions of {have}; ask for one of those")
        try:
            rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise CheckpointError(f"{file} cannot be read ({error}); restore or delete it") from error
        if rows and rows[0].get("schema_version") != ROLLOUT_SCHEMA_VERSION:
            raise CheckpointError(
                f"{file} has record version {rows[0].get('schema_version')}, and this assay reads "
                f"{ROLLOUT_SCHEMA_VERSION}; read it with the version of assay that environment.json names"
            )
        return [_decoded(row) for row in rows]

    def rollout_steps(self) -> list[int]:
        """The steps that have a file of completions, in order."""
        self._check()
        return sorted(self._rollout_files())

    def read_evaluation(self) -> dict[str, Any]:
        """``{"before": …, "during": […], "after": …}`` as far as it was measured; empty before the first."""
        self._check()
        return read_json(self.evaluation)

    def read_environment(self) -> dict[str, Any]:
        """Versions and hardware; empty if the run has not written them."""
        self._check()
        return read_json(self.environment)

    def truncate_after(self, step: int) -> None:
        """Forget what was recorded after ``step``, which a resumed run will do again.

        Drops later lines of metrics and alarms (and a torn last line), later files of completions, and later
        evaluations. Each file is replaced atomically. A folder without records is left as it is.
        """
        for file in (self.metrics, self.alarms):
            if file.is_file():
                kept = [record for record in read_json_lines(file) if record.get("step", 0) <= step]
                write_atomic(file, "".join(f"{json.dumps(record)}\n" for record in kept).encode())
        for number, path in self._rollout_files().items():
            if number > step:
                path.unlink()
        if self.evaluation.is_file():
            known = read_json(self.evaluation)
            kept_parts = {label: _until(step, part) for label, part in known.items()}
            kept_parts = {label: part for label, part in kept_parts.items() if part}
            if kept_parts != known:
                write_atomic(self.evaluation, json.dumps(kept_parts, indent=1).encode())

    def _rollout_files(self) -> dict[int, Path]:
        found = {path: ROLLOUT_NAME.fullmatch(path.name) for path in self.rollouts.glob("step-*.parquet")}
        return {int(match[1]): path for path, match in found.items() if match}

    def _check(self) -> None:
        if not self.config.is_file():
            what = "has no config.toml" if self.path.is_dir() else "is no folder"
            raise CheckpointError(
                f"{self.path.absolute()} is no run: it {what}; give the folder that `assay train` named at its end, "
                f"such as runs/<name>"
            )


def read_json_lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, or none if it does not exist. A torn last line is left out.

    Raises CheckpointError for a broken line that is not the last.
    """
    if not file.is_file():
        return []
    # Split at newlines alone: splitlines() would also split at characters that JSON strings may hold.
    lines = [line for line in file.read_bytes().split(b"\n") if line.strip()]
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise CheckpointError(f"{file}, line {number} is no JSON ({error}); delete that line") from error
        records.append(record)
    return records


def read_json(file: Path) -> dict[str, Any]:
    """One JSON object, or an empty one if the file does not exist. Raises CheckpointError if it is broken."""
    if not file.is_file():
        return {}
    try:
        value: dict[str, Any] = json.loads(file.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{file} is no JSON ({error}); restore or delete it") from error
    return value


def write_atomic(path: Path, content: bytes) -> None:
    """Write a whole file or none: to a temporary name beside it, synced, renamed, and the folder synced."""
    scratch = path.with_name(f"{UNFINISHED}{path.name}")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        # Nothing is left after the rename; on a full disk the half-written file must not keep its space.
        scratch.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    prompt = json.loads(row["prompt"]) if row["prompt_kind"] == "messages" else row["prompt"]
    # Files of earlier versions have no answer. JSON has no NaN, and a reader may write the answer as JSON again.
    answer = json.loads(row.get("answer") or "null", parse_constant=lambda _: None)
    return {**row, "prompt": prompt, "answer": answer, "components": json.loads(row["components"])}


def _until(step: int, part: Any) -> Any:
    """An evaluation, or a list of them, without what came after ``step``."""
    if isinstance(part, list):
        return [entry for entry in part if entry["step"] <= step]
    return part if part["step"] <= step else None
