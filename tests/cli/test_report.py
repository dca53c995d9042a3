"""assay report: a run's page, finished or killed; making it finishes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.train.run import load_run

Assay = Callable[..., Any]


def test_the_report_of_a_finished_run_is_the_one_it_wrote(recipe: Path, assay: Assay) -> None:
    assert assay("train", recipe).code == 0
    page = load_run("runs/tiny").folder.report
    first = page.read_bytes()
    page.unlink()
    ended = assay("report", "runs/tiny")
    assert (ended.code, ended.stdout, ended.stderr) == (0, "runs/tiny/report.html\n", "")
    assert page.read_bytes() == first


def test_a_killed_run_has_a_report_and_still_goes_on(recipe: Path, folder: Path, assay: Assay) -> None:
    assert assay("train", recipe, "--steps", "1").code == 0
    run = load_run("runs/tiny")
    # What SIGKILL in the second step of two leaves.
    run.folder.config.write_text(run.folder.config.read_text().replace("steps = 1\n", "steps = 2\n", 1))
    for path in (run.model, run.folder.report):
        path.rename(folder / path.name)
    with run.folder.metrics.open("a") as file:
        file.write('{"step": 2, "rew')
    assert run.config.train.steps == 2

    ended = assay("report", "runs/tiny")
    assert (ended.code, ended.stderr) == (0, "")
    assert run.folder.report.exists()
    assert not run.model.exists()
    assert assay("train", "--resume", "runs/tiny").code == 0
    assert [m["step"] for m in run.metrics] == [1, 2]
    assert assay("train", "--resume", "runs/tiny").code == 2


def test_a_folder_that_is_no_run(folder: Path, assay: Assay) -> None:
    ended = assay("report", "none")
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr == f"assay: {folder}/none is no run folder: it has no config.toml\n"
