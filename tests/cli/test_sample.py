"""assay sample: rows on disk, one line that says what was kept, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Assay = Callable[..., Any]

EVEN = "\ndef even(prompts, completions, **columns):\n    return [float(len(c) % 2 == 0) for c in completions]\n"


@pytest.fixture
def even(recipe: Path, folder: Path) -> Path:
    (folder / "cli_rewards.py").write_text(EVEN)
    recipe.write_text(recipe.read_text().replace("cli_rewards:letters", "cli_rewards:even"))
    return recipe


def test_it_writes_rows_and_says_how_many(even: Path, folder: Path, assay: Assay) -> None:
    ended = assay("sample", even, "--out", "rows.jsonl", "--prompts", "6", "--per-prompt", "2")
    assert ended.code == 0
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert rows
    assert all(len(row["response"]) % 2 == 0 for row in rows)
    # Completions of each prompt: the recipe's group of 4.
    assert " of 24 completions correct" in ended.stdout
    assert f"{len(rows)} rows kept → rows.jsonl" in ended.stdout


def test_all_completions_may_be_kept_and_the_recipe_overridden(even: Path, folder: Path, assay: Assay) -> None:
    args = ("--samples", "3", "--per-prompt", "3", "--prompts", "6", "--keep", "all")
    assert assay("sample", even, "--out", "all.jsonl", *args, "--set", "rollout.max_new_tokens=3").code == 0
    rows = [json.loads(line) for line in (folder / "all.jsonl").read_text().splitlines()]
    assert any(len(row["response"]) % 2 for row in rows)
    assert all(len(row["response"]) <= 3 for row in rows)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--out", "rows.txt"), "must end in .jsonl"),
        (("--out", "no/rows.jsonl"), "there is no folder"),
        (("--out", "r.jsonl", "--set", "rollout.max_new_tokens=0"), "max_new_tokens"),
    ],
)
def test_what_cannot_be_sampled(even: Path, assay: Assay, args: tuple[str, ...], says: str) -> None:
    ended = assay("sample", even, *args)
    assert (ended.code, ended.stdout) == (2, "")
    assert says in ended.stderr
