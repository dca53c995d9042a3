"""The run folder: what is read, what a resume cuts, and what a kill or a full disk leaves."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import NoReturn

import pytest

from assay.errors import CheckpointError
from assay.telemetry.store import RunFolder, read_json_lines, write_atomic


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "config.toml").write_text('name = "x"\n')
    return RunFolder(tmp_path)


def lines(*steps: int) -> str:
    return "".join(json.dumps({"step": step, "reward_mean": step / 10}) + "\n" for step in steps)


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    names = {
        p.relative_to(tmp_path).as_posix()
        for p in (
            run.config,
            run.metrics,
            run.rollouts,
            run.alarms,
            run.tensorboard,
            run.checkpoints,
            run.model,
            run.report,
            run.evaluation,
            run.environment,
            run.rollout_file(12),
        )
    }
    assert names == {
        "config.toml",
        "metrics.jsonl",
        "rollouts",
        "alarms.jsonl",
        "tensorboard",
        "checkpoints",
        "model",
        "report.html",
        "evaluation.json",
        "environment.json",
        "rollouts/step-000012.parquet",
    }


def test_a_run_that_has_only_begun_reads_as_empty(run: RunFolder) -> None:
    assert run.read_metrics() == []
    assert run.rollout_steps() == []
    assert run.read_evaluation() == {}
    assert run.read_environment() == {}


@pytest.mark.parametrize("read", ["read_metrics", "rollout_steps", "read_evaluation", "read_environment"])
def test_a_folder_that_is_no_run_is_refused_with_the_fix(tmp_path: Path, read: str) -> None:
    with pytest.raises(CheckpointError, match=r"is no run: it has no config\.toml; give the folder"):
        getattr(RunFolder(tmp_path), read)()
    with pytest.raises(CheckpointError, match="is no folder"):
        getattr(RunFolder(tmp_path / "missing"), read)()


def test_a_missing_step_names_the_ones_there_are(run: RunFolder) -> None:
    with pytest.raises(CheckpointError, match="completions of no step"):
        run.read_rollouts(3)
    run.rollouts.mkdir()
    for step in (1, 2):
        run.rollout_file(step).write_bytes(b"")
    with pytest.raises(CheckpointError, match="steps 1 to 2"):
        run.read_rollouts(3)
    with pytest.raises(CheckpointError, match="cannot be read"):
        run.read_rollouts(2)


def test_steps_are_in_number_order_and_half_written_files_are_not_steps(run: RunFolder) -> None:
    run.rollouts.mkdir()
    for step in (1_000_000, 2, 10):
        run.rollout_file(step).write_bytes(b"")
    (run.rollouts / ".writing-step-000003.parquet").write_bytes(b"")
    (run.rollouts / "step-x.parquet").write_bytes(b"")
    assert run.rollout_steps() == [2, 10, 1_000_000]


def test_a_torn_last_line_is_left_out_and_a_broken_one_before_it_is_an_error(run: RunFolder) -> None:
    run.metrics.write_text(lines(1, 2) + '{"step": 3, "rew')
    assert [r["step"] for r in run.read_metrics()] == [1, 2]
    run.metrics.write_text(lines(1) + '{"step": 2, "rew\n' + lines(3))
    with pytest.raises(CheckpointError, match="line 2 is no JSON"):
        run.read_metrics()


def test_characters_that_only_look_like_line_ends_do_not_split(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"text": "a\u2028b\x85c"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_json_lines(file) == [{"text": "a\u2028b\x85c"}]


def test_truncate_after_forgets_all_that_came_later(run: RunFolder) -> None:
    run.metrics.write_text(lines(1, 2, 3) + '{"st')
    run.alarms.write_text(lines(2, 3))
    run.rollouts.mkdir()
    for step in (1, 2, 3, 4):
        run.rollout_file(step).write_bytes(b"x")
    run.evaluation.write_text(
        json.dumps({"before": {"step": 0}, "during": [{"step": 2}, {"step": 3}], "after": {"step": 4}})
    )
    run.truncate_after(2)
    assert run.metrics.read_text() == lines(1, 2)
    assert run.alarms.read_text() == lines(2)
    assert run.rollout_steps() == [1, 2]
    assert run.read_evaluation() == {"before": {"step": 0}, "during": [{"step": 2}]}


def test_truncate_after_leaves_a_new_folder_alone(tmp_path: Path) -> None:
    RunFolder(tmp_path).truncate_after(0)
    assert list(tmp_path.iterdir()) == []


def test_write_atomic_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")
    write_atomic(target, b"new")
    assert target.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failed_write_keeps_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"old")

    def full(descriptor: int) -> NoReturn:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
