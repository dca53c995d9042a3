"""What is written can be read back exactly, and a full disk breaks no line."""

from __future__ import annotations

import errno
import io
import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from assay.errors import CheckpointError
from assay.telemetry.sinks import ROLLOUT_SCHEMA, MetricsFile, RolloutFiles, TensorBoard
from assay.telemetry.store import RunFolder
from assay.types import Group, Row, Sample, Segment, Trajectory, Verdict

MESSAGES = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2 = ?"})


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "config.toml").write_text("")
    return RunFolder(tmp_path)


def groups() -> list[Group]:
    several_turns = (
        Segment((7, 8), True, (-0.25, -0.5), 3),
        Segment((9,), False, (), 3),
        Segment((2,), True, (-1.0,), 4),
    )
    good = Sample(
        Trajectory(100, 12, (1, 2), several_turns, "stop"),
        Row("row-1", MESSAGES, "4"),
        "four\x00 \ud800",
        Verdict(0.1 + 0.2, "wrong", True, "nearly", 2.5, {"a": 0.5, "b": math.nan}),
    )
    lost = Sample(
        Trajectory(101, 12, (1, 2), (Segment((), True, (), 3),), "length"),
        Row("row-1", '[{"role": "looks like messages"}]', {"sum": 4, "day": date(2025, 1, 2), "mean": math.nan}),
        "",
        Verdict(math.nan, "crash", False, "the checker died"),
    )
    return [Group(12, (good, lost), (1.5, 0.0), "unscorable")]


def test_rollouts_come_back_as_they_were(run: RunFolder) -> None:
    path = RolloutFiles(run.rollouts).write(12, groups())
    assert path == run.rollout_file(12)
    assert pq.read_schema(path).equals(ROLLOUT_SCHEMA)
    good, lost = run.read_rollouts(12)
    assert good == {
        "schema_version": 1,
        "step": 12,
        "sample_id": 100,
        "group_id": 12,
        "row_id": "row-1",
        "prompt_kind": "messages",
        "prompt": [dict(m) for m in MESSAGES],
        "answer": "4",
        "completion": "four\x00 \\ud800",  # UTF-8 has no lone surrogates: its escape is kept
        "completion_ids": [7, 8, 9, 2],
        "logprobs": [-0.25, -0.5, 0.0, -1.0],
        "weight_version": 3,  # the oldest of both
        "finish_reason": "stop",
        "reward": 0.1 + 0.2,
        "status": "wrong",
        "correct": True,
        "reason": "nearly",
        "milliseconds": 2.5,
        "components": {"a": 0.5, "b": None},
        "advantage": 1.5,
        "group_state": "unscorable",
    }
    assert math.isnan(lost["reward"])
    assert lost["completion_ids"] == []
    assert lost["prompt"] == '[{"role": "looks like messages"}]'
    assert lost["answer"] == {"sum": 4, "day": "2025-01-02", "mean": None}  # as far as JSON has it
    assert run.rollout_steps() == [12]


def test_a_file_from_before_answers_were_kept_is_read_without_them(run: RunFolder) -> None:
    path = RolloutFiles(run.rollouts).write(1, groups())
    pq.write_table(pq.read_table(path).drop_columns("answer"), path)
    assert [row["answer"] for row in run.read_rollouts(1)] == [None, None]


def test_a_step_written_twice_is_there_once(run: RunFolder) -> None:
    files = RolloutFiles(run.rollouts)
    files.write(1, groups())
    files.write(1, [])
    assert run.read_rollouts(1) == []
    assert [p.name for p in run.rollouts.iterdir()] == ["step-000001.parquet"]


def test_records_of_another_version_are_refused(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.telemetry.sinks.ROLLOUT_SCHEMA_VERSION", 2)
    RolloutFiles(run.rollouts).write(1, groups())
    with pytest.raises(CheckpointError, match="record version 2, and this assay reads 1"):
        run.read_rollouts(1)


def test_metrics_lines_are_strict_json(run: RunFolder) -> None:
    sink = MetricsFile(run.metrics)
    sink.write({"step": 1, "reward_mean": math.nan, "kl_k3_mean": None, "grad_norm": math.inf, "seconds": 0.1})
    sink.write({"step": 2, "reward_mean": 0.1 + 0.2})

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    read = [json.loads(line, parse_constant=refuse) for line in run.metrics.read_text().splitlines()]
    assert read == [
        {"step": 1, "reward_mean": None, "kl_k3_mean": None, "grad_norm": None, "seconds": 0.1},
        {"step": 2, "reward_mean": 0.1 + 0.2},
    ]
    assert run.read_metrics() == read


class HalfWritten(io.FileIO):
    """A file on a disk that fills up after five bytes."""

    def write(self, content: Any) -> int:
        if self.tell() >= 17:  # the first line has 12
            raise OSError(errno.ENOSPC, "no space left on device")
        return super().write(content[:5])


def test_a_full_disk_leaves_no_half_line(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = MetricsFile(run.metrics)
    sink.write({"step": 1})
    before = run.metrics.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, mode, buffering: HalfWritten(str(path), "ab"))
        with pytest.raises(OSError, match="no space"):
            sink.write({"step": 222})
    assert run.metrics.read_bytes() == before
    sink.write({"step": 2})
    assert [r["step"] for r in run.read_metrics()] == [1, 2]


def scalars(run: RunFolder) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_has_the_finite_numbers_and_a_resume_replaces(run: RunFolder) -> None:
    first = TensorBoard(run.tensorboard)
    first.write({"step": 1, "reward_mean": 0.5, "kl_k3_mean": None, "loss": math.nan, "text": "x"})
    first.write({"step": 2, "reward_mean": 0.25})
    first.close()
    assert scalars(run) == {"reward_mean": [(1, 0.5), (2, 0.25)]}
    resumed = TensorBoard(run.tensorboard)
    resumed.write({"step": 2, "reward_mean": 0.75})
    resumed.close()
    assert scalars(run) == {"reward_mean": [(1, 0.5), (2, 0.75)]}


def test_a_tensorboard_without_steps_writes_nothing(run: RunFolder) -> None:
    TensorBoard(run.tensorboard).close()
    assert not run.tensorboard.exists()
