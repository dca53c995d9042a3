"""The frame of the command line: help, usage errors, exit codes, and one message instead of a traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from assay.cli import main
from assay.errors import (
    AssayError,
    CheckpointError,
    ConfigError,
    DataError,
    EngineError,
    Interrupted,
    MachineError,
    ModelError,
    VerifierError,
)

Assay = Callable[..., Any]
COMMANDS = ("train", "sft", "dpo", "pairs", "sample", "pipeline", "eval", "score", "report", "recipes", "doctor")


def test_help_lists_every_command(assay: Assay) -> None:
    ended = assay("--help")
    assert (ended.code, ended.stderr) == (0, "")
    assert all(f"\n  {command} " in ended.stdout for command in COMMANDS)
    assert len(main.app.registered_commands) == len(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, assay: Assay) -> None:
    ended = assay(command, "--help")
    assert (ended.code, ended.stderr) == (0, "")
    assert f"assay {command}" in ended.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("trian",), "No such command 'trian'"),
        (("train", "--stepz", "3"), "No such option"),
        (("train", "x.toml", "--steps", "0"), "'--steps'"),
        (("train", "x.toml", "--steps", "many"), "'--steps'"),
        (("eval", "--model", "m"), "Missing option"),
        (("report",), "Missing argument"),
    ],
)
def test_wrong_usage_is_exit_code_2(args: tuple[str, ...], says: str, assay: Assay) -> None:
    ended = assay(*args)
    assert ended.code == 2
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AssayError, 2),
        (ConfigError, 2),
        (DataError, 2),
        (ModelError, 2),
        (VerifierError, 2),
        (CheckpointError, 2),
        (EngineError, 4),
        (MachineError, 4),
        (Interrupted, 130),
    ],
)
def test_an_error_is_one_message_and_its_exit_code(
    error: type[AssayError], code: int, assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error("what, where, and the fix") from ValueError("inside")

    monkeypatch.setattr(main, "app", fail)
    ended = assay("anything")
    assert (ended.code, ended.stdout, ended.stderr) == (code, "", "assay: what, where, and the fix\n")


def test_ctrl_c_where_nothing_waits_for_it_is_130(assay: Assay, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    # Inside the app, where typer sees it first, and outside.
    monkeypatch.setattr("assay.cli.doctor.examine", interrupt)
    inside = assay("doctor")
    monkeypatch.setattr(main, "app", interrupt)
    outside = assay("doctor")
    assert inside == outside
    assert (inside.code, inside.stderr) == (130, "assay: stopped at once; the last whole checkpoint stands\n")


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def bug() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(main, "app", bug)
    with pytest.raises(RuntimeError, match="a bug"):
        main.run()


@pytest.mark.parametrize("args", [["--help"], ["recipes"], ["train", "none.toml"], ["pipeline", "none.toml"]])
def test_what_needs_no_model_does_not_load_torch(args: list[str]) -> None:
    code = f"""
import sys
from assay.cli.main import run
sys.argv = ["assay", *{args!r}]
try:
    run()
except SystemExit:
    pass
print("torch" in sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "False"
