"""assay train and assay sft: a run from the command line, and going on with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.train.run import load_run

Assay = Callable[..., Any]


@pytest.mark.parametrize("command", ["train", "sft"])
def test_a_run_and_its_extension(command: str, recipe: Path, folder: Path, assay: Assay) -> None:
    ended = assay(command, recipe, "--set", "train.keep_last=1", "--steps", "1")
    assert (ended.code, ended.stderr) == (0, "")
    run = load_run("runs/tiny")
    assert [m["step"] for m in run.metrics] == [1]
    assert run.config.train.keep_last == 1
    for part in ("step 1/1", "held-out, before:", "held-out, after:", "model: runs/tiny/m", "report: runs/tiny/r"):
        assert part in ended.stdout

    refused = assay(command, "--resume", "runs/tiny")
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr == "assay: runs/tiny has finished its 1 steps; to train further, add --steps N\n"
    other = assay(command, "--resume", "runs/tiny", "--steps", "2", "--set", "seed=1")
    assert (other.code, other.stdout) == (2, "")
    assert (
        "seed cannot change in a run that goes on; only these may: reward_model.batch_size, rollout.kv_cache_gb,"
        in other.stderr
    )
    assert assay(command, "--resume", "runs/tiny", "--steps", "2", "--set", "train.memory_gb=6").code == 0
    assert [m["step"] for m in run.metrics] == [1, 2]
    assert (run.config.train.steps, run.config.train.memory_gb) == (2, 6.0)


def test_where_runs_go(recipe: Path, folder: Path, assay: Assay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_RUNS", str(folder / "elsewhere"))
    for _ in range(2):
        assert assay("train", recipe, "--steps", "1").code == 0
    assert sorted(p.name for p in (folder / "elsewhere").iterdir()) == ["tiny", "tiny-2"]
    assert assay("train", recipe, "--steps", "1", "--out", "exactly/here").code == 0
    ended = assay("train", recipe, "--steps", "1", "--out", "exactly/here")
    assert ended.code == 2
    assert "choose a new folder, or go on with its run by `--resume exactly/here`" in ended.stderr


def test_every_line_of_metrics_is_json_that_anything_reads(recipe: Path, folder: Path, assay: Assay) -> None:
    assert assay("train", recipe).code == 0

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    for line in (folder / "runs/tiny/metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "name a recipe to start (`assay recipes` lists those that ship), or a run with --resume DIR"),
        (("none.toml",), "there is no recipe"),
        (("--resume", "none"), "is no run folder: it has no config.toml"),
        (("recipe.toml", "--resume", "none"), "it cannot be combined with a recipe"),
        (("recipe.toml", "--resume", "none", "--out", "x"), "cannot be combined with a recipe, --out"),
        (("recipe.toml", "--set", "seed"), "--set needs KEY=VALUE"),
    ],
)
@pytest.mark.parametrize("command", ["train", "sft", "dpo"])
def test_wrong_usage(command: str, args: tuple[str, ...], says: str, recipe: Path, assay: Assay) -> None:
    ended = assay(command, *args)
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("assay: ")
    assert says in ended.stderr


def test_a_run_goes_on_with_its_own_command(recipe: Path, assay: Assay) -> None:
    assert assay("sft", recipe, "--steps", "1").code == 0
    ended = assay("train", "--resume", "runs/tiny", "--steps", "2")
    assert ended.code == 2
    assert "runs/tiny is a run of `assay sft`; resume it with that command" in ended.stderr
