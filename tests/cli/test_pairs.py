"""assay pairs: what it writes and says, the same bytes each time, and wrong usage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Assay = Callable[..., Any]


@pytest.fixture
def run(recipe: Path, assay: Assay) -> Path:
    assert assay("train", recipe, "--set", "rollout.max_new_tokens=12").code == 0
    return Path("runs/tiny")


def test_pairs_of_a_run(run: Path, folder: Path, assay: Assay) -> None:
    ended = assay("pairs", run, "--out", "a.jsonl", "--per-group", "2")
    assert (ended.code, ended.stderr) == (0, "")
    lines = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    assert ended.stdout.splitlines()[0].startswith(f"{len(lines)} pairs from ")
    assert ended.stdout.splitlines()[0].endswith(" of 4 groups: a.jsonl")
    assert lines
    for line in lines:
        assert list(line) == ["prompt", "chosen", "rejected", "answer", "rewards"]
        assert line["rewards"]["chosen"] > line["rewards"]["rejected"]
    assert assay("pairs", run, "--out", "b.jsonl", "--per-group", "2").code == 0
    assert Path("a.jsonl").read_bytes() == Path("b.jsonl").read_bytes()
    assert (
        assay("pairs", run, "--out", "c.jsonl", "--steps", "2:2")
        .stdout.splitlines()[0]
        .endswith(" of 2 groups: c.jsonl")
    )


def test_no_pair_is_an_error_that_says_why(run: Path, folder: Path, assay: Assay) -> None:
    ended = assay("pairs", run, "--out", "a.jsonl", "--margin", "100", "--steps", ":1")
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("assay: no pair in 2 groups; lower --margin, or take more --steps\n")
    assert " groups gave none: " in ended.stderr
    assert not Path("a.jsonl").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("run", "--out", "a.jsonl"), "run is no run folder: it has no config.toml"),
        (("run", "--out", "a.txt"), "--out a.txt must end in .jsonl"),
        (("run", "--out", "there.jsonl"), "--out there.jsonl is there already; delete it, or choose another name"),
        (("run",), "Missing option"),
        (("run", "--out", "a.jsonl", "--margin", "-1"), "'--margin'"),
        (("run", "--out", "a.jsonl", "--per-group", "0"), "'--per-group'"),
        *(
            (("run", "--out", "a.jsonl", "--steps", steps), f"--steps needs A:B such as 1:20, 5: or :10, got {steps!r}")
            for steps in ("5", "1:x", "-1:2", "1:2:3", "²:")
        ),
    ],
)
def test_wrong_usage(args: tuple[str, ...], says: str, folder: Path, assay: Assay) -> None:
    Path("there.jsonl").write_text("")
    ended = assay("pairs", *args)
    assert (ended.code, ended.stdout) == (2, "")
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
