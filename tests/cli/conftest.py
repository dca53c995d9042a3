"""The command line in this process: torch is loaded once for all tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

REWARDS = """
print("loaded")

def letters(prompts, completions, **columns):
    print("called")
    return [sum(c.isalpha() for c in text) / 6 for text in completions]
"""


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
