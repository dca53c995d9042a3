"""A run that is killed or interrupted in the middle of a step goes on to what it would have been, byte for byte."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.telemetry.store import RunFolder

pytestmark = pytest.mark.slow


def test_killed_in_the_middle_of_a_step(
    whole: Any,
    start: Callable[..., Any],
    paused: Callable[..., Any],
    recipe_file: Callable[..., Path],
    traces: Callable[[Path], Any],
) -> None:
    child = paused("train", recipe_file(), "--out", "cut", step=4)
    child.signal(signal.SIGKILL)
    assert child.wait().code == -signal.SIGKILL
    assert [record["step"] for record in RunFolder(Path("cut")).read_metrics()] == [1, 2, 3]
    Path("pause.json").unlink()

    assert start("train", "--resume", "cut").wait().code == 0
    assert traces(Path("cut")) == whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_in_the_middle_of_a_step(
    number: signal.Signals,
    whole: Any,
    start: Callable[..., Any],
    paused: Callable[..., Any],
    recipe_file: Callable[..., Path],
    traces: Callable[[Path], Any],
) -> None:
    child = paused("train", recipe_file(), "--out", "cut", step=4)
    child.signal(number)
    Path("pause.json").unlink()
    ended = child.wait()
    assert ended.code == 130
    asked, said = ended.stderr.strip().splitlines()
    assert "stopping at the next safe point" in asked
    assert said == "assay: stopped after step 3; go on with: assay train --resume cut"
    assert json.loads(Path("cut/checkpoints/step-000003/progress.json").read_text())["step"] == 3

    assert start("train", "--resume", "cut").wait().code == 0
    assert traces(Path("cut")) == whole


def test_a_second_interrupt_stops_at_once(
    whole: Any,
    start: Callable[..., Any],
    paused: Callable[..., Any],
    recipe_file: Callable[..., Path],
    traces: Callable[[Path], Any],
    until: Callable[[Callable[[], bool]], None],
) -> None:
    child = paused("train", recipe_file(), "--out", "cut", step=4)
    child.signal(signal.SIGINT)
    until(lambda: "stopping" in (child.folder / "stderr").read_text())
    child.signal(signal.SIGINT)
    ended = child.wait()
    assert ended.code == 130
    assert ended.stderr.splitlines()[-1] == "assay: stopped at once; the last whole checkpoint stands"
    assert not Path("cut/checkpoints/step-000003").exists()
    Path("pause.json").unlink()

    assert start("train", "--resume", "cut").wait().code == 0
    assert traces(Path("cut")) == whole


def test_killed_before_the_first_checkpoint_says_to_start_again(
    start: Callable[..., Any], paused: Callable[..., Any], recipe_file: Callable[..., Path]
) -> None:
    child = paused("train", recipe_file(), "--out", "cut", step=1)
    child.signal(signal.SIGKILL)
    assert child.wait().code == -signal.SIGKILL
    ended = start("train", "--resume", "cut").wait()
    assert ended.code == 2
    assert ended.stderr == (
        "assay: cut has no whole checkpoint to go on from (it stopped before the first); start it again\n"
    )
