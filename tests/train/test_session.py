"""How a run ends when something breaks: what is saved, what is said, and with which exit code."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.config import Config
from assay.errors import ConfigError, Interrupted, MachineError
from assay.telemetry.sinks import MetricsFile
from assay.train import rl
from assay.train.report import write_report


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def fail_at(step: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing the metrics of ``step`` raises."""
    original = MetricsFile.write

    def write(file: MetricsFile, record: dict[str, Any]) -> None:
        if record["step"] == step:
            raise error
        original(file, record)

    monkeypatch.setattr(MetricsFile, "write", write)


def test_a_full_disk_names_the_last_whole_checkpoint(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_at(4, OSError(errno.ENOSPC, "No space left on device"), patch)
        with pytest.raises(MachineError, match="The last whole checkpoint is cut/checkpoints/step-000002"):
            assay.train(config(), out="cut")
    assert rl.resume(Path("cut")).metrics[-1]["step"] == 4


def test_before_the_first_checkpoint_it_says_that_there_is_none(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(1, MemoryError(), monkeypatch)
    with pytest.raises(MachineError, match="There is no whole checkpoint yet"):
        assay.train(config())


def test_a_bug_stays_a_bug(config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(2, KeyError("a bug"), monkeypatch)
    with pytest.raises(KeyError, match="a bug"):
        assay.train(config())


def test_a_disk_that_is_full_when_the_user_stops_is_said_as_such(
    config: Callable[..., Config], stop_at: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at("update", 4)
    with monkeypatch.context() as patch:
        patch.setattr("assay.train.checkpoint._sync", full)
        with pytest.raises(MachineError, match="There is no whole checkpoint yet"):
            assay.train(config(train={"checkpoint_every": 10}), out="cut")
    assert not list(Path("cut").rglob(".writing-*"))


def test_an_interrupt_saves_the_last_whole_step(
    config: Callable[..., Config], stop_at: Callable[[str, int], None]
) -> None:
    stop_at("update", 4)
    with pytest.raises(Interrupted, match="stopped after step 3; go on with: assay train --resume cut"):
        assay.train(config(), out="cut")
    assert json.loads(Path("cut/checkpoints/step-000003/progress.json").read_text()) == {
        "step": 3,
        "seed": 0,
        "kind": "grpo",
        "schema_version": 1,
    }
    assert [p.name for p in sorted(Path("cut/checkpoints").iterdir())] == ["step-000002", "step-000003"]


def test_a_report_of_an_unfinished_run_does_not_finish_it(
    config: Callable[..., Config], stop_at: Callable[[str, int], None]
) -> None:
    stop_at("update", 4)
    with pytest.raises(Interrupted):
        assay.train(config(), out="cut")
    assert write_report(Path("cut")).exists()
    assert not Path("cut/model").exists()
    assert rl.resume(Path("cut")).metrics[-1]["step"] == 4


def test_a_run_stopped_at_the_end_of_its_extension_is_not_taken_for_finished(
    config: Callable[..., Config], stop_at: Callable[[str, int], None]
) -> None:
    run = assay.train(config(train={"steps": 2}), out="cut")
    old = (run.model / "model.safetensors").read_bytes()
    stop_at("evaluation", 1)
    with pytest.raises(Interrupted, match="stopped after step 4; go on with"):
        rl.resume(run.path, ["train.steps=4"])
    assert (run.model / "model.safetensors").read_bytes() == old
    rl.resume(run.path)
    last = run.path / "checkpoints" / "step-000004" / "model" / "model.safetensors"
    assert (run.model / "model.safetensors").read_bytes() == last.read_bytes() != old
    with pytest.raises(ConfigError, match="has finished its 4 steps"):
        rl.resume(run.path)


def test_every_step_is_evaluated_once(config: Callable[..., Config]) -> None:
    run = assay.train(config(train={"eval_every": 1}))
    assert [entry["step"] for entry in run.evaluation["during"]] == [1, 2, 3]
    rl.resume(run.path, ["train.steps=6"])
    assert [entry["step"] for entry in run.evaluation["during"]] == [1, 2, 3, 4, 5]
    assert run.evaluation["after"]["step"] == 6
    for text in run.folder.evaluation.read_text(), run.folder.metrics.read_text():
        assert "NaN" not in text


def test_old_checkpoints_go_and_the_last_ones_stay(config: Callable[..., Config]) -> None:
    run = assay.train(config(train={"steps": 5, "checkpoint_every": 1, "keep_last": 3}))
    names = [p.name for p in sorted((run.path / "checkpoints").iterdir())]
    assert names == ["step-000003", "step-000004", "step-000005"]


def test_what_a_kill_left_half_written_is_cleared_on_resume(
    config: Callable[..., Config], stop_at: Callable[[str, int], None]
) -> None:
    stop_at("update", 3)
    with pytest.raises(Interrupted):
        assay.train(config(), out="cut")
    for name in ("cut/.writing-model", "cut/checkpoints/.writing-step-000004"):
        Path(name).mkdir()
        (Path(name) / "half").write_bytes(b"half")
    run = rl.resume(Path("cut"))
    assert not list(run.path.rglob(".writing-*"))
    assert not (run.model / "half").exists()


def test_without_held_out_rows_there_is_no_evaluation(config: Callable[..., Config]) -> None:
    run = assay.train(config(data={"eval": None}, train={"steps": 1, "eval_every": 1}))
    assert run.evaluation == {}
    assert "No held-out evaluation" in run.folder.report.read_text()
