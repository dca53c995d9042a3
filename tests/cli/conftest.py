"""The command line in this process: torch is loaded once for all tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from transformers.utils import logging

from assay.cli.main import run

REWARDS = """
print("loaded")

def letters(prompts, completions, **columns):
    print("called")
    return [sum(c.isalpha() for c in text) / 6 for text in completions]
"""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


Assay = Callable[..., Outcome]


@pytest.fixture
def assay(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Assay:
    """``assay("train", "recipe.toml")``, run as the console script runs it."""
    # A new process switches the bars off by itself, before transformers is loaded.
    logging.disable_progress_bar()

    def call(*args: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run()
        code = ended.value.code
        return Outcome(code if isinstance(code, int) else int(code is not None), *capsys.readouterr())

    return call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where assay runs: a reward function that prints is here, and runs go here."""
    (tmp_path / "cli_rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cli_rewards", raising=False)
    monkeypatch.delenv("ASSAY_RUNS", raising=False)
    return tmp_path


@pytest.fixture
def recipe(folder: Path, model_folder: Callable[..., Path]) -> Path:
    """A recipe that takes a fraction of a second."""
    whole: dict[str, Any] = {
        "name": "tiny",
        "model": {"name": str(model_folder("llama"))},
        "data": {"train": "builtin:addition?split=train&rows=64", "eval": "builtin:addition?split=heldout&rows=2"},
        "rollout": {"prompts_per_step": 2, "max_new_tokens": 4},
        "algorithm": {"group_size": 4},
        "verifiers": [{"name": "cli_rewards:letters"}],
        "train": {"steps": 2, "checkpoint_every": 1},
        "sft": {"rows_per_step": 4},
    }
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps(whole))
    return path
