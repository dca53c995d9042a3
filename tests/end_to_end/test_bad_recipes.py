"""Ten kinds of wrong recipe: each ends with exit code 2 and one message that says where, what and the fix."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROW = {"prompt": "1+1=", "answer": "2"}


class Wrong(NamedTuple):
    """What is wrong with a recipe, and what its message must say."""

    changes: dict[str, Any]
    says: tuple[str, ...]


WRONG = {
    "an unknown key": Wrong(
        {"train": {"stepz": 3}}, ("recipe.toml", "train.stepz: unknown key", "did you mean 'steps'?", "allowed: steps,")
    ),
    "a group of none": Wrong(
        {"algorithm": {"group_size": 0}}, ("algorithm.group_size", "got 0", "greater than or equal to 1")
    ),
    "a negative beta": Wrong(
        {"algorithm": {"beta": -0.1}}, ("algorithm.beta", "got -0.1", "greater than or equal to 0")
    ),
    "a data file that is not there": Wrong(
        {"data": {"train": "none.jsonl"}}, ("there is no file", "/none.jsonl", "builtin:addition")
    ),
    "an empty data set": Wrong({"data": {"train": "empty.jsonl"}}, ("/empty.jsonl is empty", "at least one row")),
    "a row without an answer": Wrong(
        {"data": {"train": "partial.jsonl"}}, ("partial.jsonl, line 2 has no 'answer'", "its columns: prompt")
    ),
    "an unknown verifier": Wrong(
        {"verifiers": [{"name": "exakt"}]}, ("no verifier 'exakt'", "did you mean 'exact'?", "allowed: exact, ")
    ),
    "a model folder that is no model": Wrong(
        {"model": {"name": "./no-model"}}, ("folder no-model holds no model", "no config.json", "found notes.txt")
    ),
    "a prompt longer than the context": Wrong(
        {"data": {"train": "long.jsonl"}},
        ("row long.jsonl:2", "70", "the model's context has 64; shorten"),
    ),
    "too little disk": Wrong({}, ("too little disk", "0.04 GB free", "the run needs", "--out", "train.keep_last")),
}


@pytest.fixture(autouse=True)
def _files(folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, list[dict[str, str]]] = {
        "empty.jsonl": [],
        "partial.jsonl": [ROW, {"prompt": "1+1="}],
        "long.jsonl": [ROW, {**ROW, "prompt": "1" * 70}],
    }
    for name, rows in files.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "no-model").mkdir()
    (folder / "no-model" / "notes.txt").write_text("nothing")
    if "too little disk" in request.node.name:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 96 * 10**7, 4 * 10**7))


@pytest.mark.parametrize("command", ["train", "sft"])
@pytest.mark.parametrize("kind", WRONG)
def test_is_refused_with_one_message_and_leaves_nothing(
    kind: str, command: str, folder: Path, recipe_file: Callable[..., Path], assay: Callable[..., Any]
) -> None:
    ended = assay(command, recipe_file(**WRONG[kind].changes))
    _assert_refused(ended, folder, WRONG[kind].says)


@pytest.mark.parametrize("command", ["train", "sft"])
def test_wrong_evaluation_rows_are_refused_before_anything_is_written(
    command: str, folder: Path, recipe_file: Callable[..., Path], assay: Callable[..., Any]
) -> None:
    ended = assay(command, recipe_file(data={"eval": "partial.jsonl"}))
    _assert_refused(ended, folder, ("partial.jsonl, line 2",))


def test_every_problem_of_a_recipe_is_in_the_one_message(
    folder: Path, recipe_file: Callable[..., Path], assay: Callable[..., Any]
) -> None:
    ended = assay("train", recipe_file(train={"steps": 0, "stepz": 1}, algorithm={"beta": -1.0, "group_size": 0}))
    _assert_refused(ended, folder, ("train.steps", "train.stepz", "algorithm.beta", "algorithm.group_size"))


def _assert_refused(ended: Any, folder: Path, says: tuple[str, ...]) -> None:
    assert ended.code == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("assay: ")
    assert ended.stderr.count("assay: ") == 1
    assert "Traceback" not in ended.stderr
    for part in says:
        assert part in ended.stderr
    assert not list(folder.glob("runs/*"))
