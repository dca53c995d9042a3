"""Where records go: a line of JSON a step, a Parquet file a step, TensorBoard.

A full disk shows here first. The OSError is not caught: the training loop turns it into a MachineError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from assay.telemetry.store import ROLLOUT_SCHEMA_VERSION, RunFolder, write_atomic
from assay.types import Group, Message, Sample

ROLLOUT_SCHEMA = pa.schema(
    [
        ("schema_version", pa.int32()),
        ("step", pa.int64()),
        ("sample_id", pa.int64()),
        ("group_id", pa.int64()),
        ("row_id", pa.string()),
        ("prompt_kind", pa.string()),  # text, or messages: then prompt is JSON
        ("prompt", pa.string()),
        ("answer", pa.string()),  # JSON
        ("completion", pa.string()),
        ("completion_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("weight_version", pa.int64()),
        ("finish_reason", pa.string()),
        ("reward", pa.float64()),
        ("status", pa.string()),
        ("correct", pa.bool_()),
        ("reason", pa.string()),
        ("milliseconds", pa.float64()),
        ("components", pa.string()),  # JSON
        ("advantage", pa.float64()),
        ("group_state", pa.string()),
    ]
)


class MetricsFile:
    """metrics.jsonl: one object a step."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line. NaN and infinities become null, since JSON has neither."""
        line = json.dumps({key: _json_number(value) for key, value in record.items()}, allow_nan=False)
        # Opened anew each time: a resume replaces the file, and a line is on its way to disk when this returns.
        with self._path.open("ab", buffering=0) as file:
            end = file.tell()
            content = f"{line}\n".encode()
            try:
                while content:
                    content = content[file.write(content) :]
            except OSError:
                # Half a line would break the next one.
                file.truncate(end)
                raise


class RolloutFiles:
    """rollouts/: every completion with its verdict, one Parquet file a step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, step: int, groups: Sequence[Group]) -> Path:
        """Write the step's file, whole or not at all, replacing one that is there."""
        rows = [
            _rollout_row(step, group, sample, advantage)
            for group in groups
            for sample, advantage in zip(group.samples, group.advantages, strict=True)
        ]
        buffer = BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=ROLLOUT_SCHEMA), buffer, compression="zstd")
        self._folder.mkdir(parents=True, exist_ok=True)
        path = RunFolder(self._folder.parent).rollout_file(step)
        write_atomic(path, buffer.getvalue())
        return path


class TensorBoard:
    """TensorBoard scalars, one for each number of a record."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def write(self, record: Mapping[str, Any]) -> None:
        """Add the record's finite numbers at its step."""
        step = record["step"]
        if self._writer is None:
            # Optional and slow to import; and only now is the first step known, from which on a resumed run
            # must hide what the interrupted one had written.
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

            self._writer = SummaryWriter(str(self._folder), purge_step=step)
        for key, value in record.items():
            if key != "step" and isinstance(value, int | float) and math.isfinite(value):
                self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Flush and close; a writer that was never used writes nothing."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _rollout_row(step: int, group: Group, sample: Sample, advantage: float) -> dict[str, Any]:
    trajectory, verdict = sample.trajectory, sample.verdict
    messages = not isinstance(sample.row.prompt, str)
    return {
        "schema_version": ROLLOUT_SCHEMA_VERSION,
        "step": step,
        "sample_id": trajectory.sample_id,
        "group_id": group.group_id,
        "row_id": _storable(sample.row.row_id),
        "prompt_kind": "messages" if messages else "text",
        "prompt": _storable(_prompt_text(sample.row.prompt)),
        # Parquet sources have types that JSON lacks, such as dates: these are kept as text.
        "answer": json.dumps(sample.row.answer, default=str),
        "completion": _storable(sample.text),
        "completion_ids": list(trajectory.completion_ids),
        "logprobs": list(trajectory.logprobs),
        # The oldest weights that took part: what staleness is counted from.
        "weight_version": min(s.weight_version for s in trajectory.segments) if trajectory.segments else None,
        "finish_reason": trajectory.finish_reason,
        "reward": verdict.reward,
        "status": verdict.status,
        "correct": verdict.correct,
        "reason": _storable(verdict.reason),
        "milliseconds": verdict.milliseconds,
        "components": json.dumps({name: _json_number(value) for name, value in verdict.components.items()}),
        "advantage": advantage,
        "group_state": group.state,
    }


def _prompt_text(prompt: str | tuple[Message, ...]) -> str:
    return prompt if isinstance(prompt, str) else json.dumps([dict(m) for m in prompt], ensure_ascii=False)


def _storable(text: str) -> str:
    """Text that UTF-8 can hold: a lone surrogate, which JSON can smuggle in, becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _json_number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
