"""Samples built by hand, and recipes of runs that take a fraction of a second."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import logging

from assay.config import Config, parse_config
from assay.errors import Interrupted
from assay.telemetry.store import RunFolder
from assay.train.session import Session
from assay.types import FinishReason, Row, Sample, Segment, Status, Trajectory, Verdict

REWARDS = """
def letters(prompts, completions, **columns):
    return [sum(c.isalpha() for c in text) / 6 for text in completions]

def same(prompts, completions, **columns):
    return [0.3 for _ in completions]

def right(prompts, completions, **columns):
    return [1.0 for _ in completions]

def unscorable(prompts, completions, **columns):
    return [None for _ in completions]
"""


@pytest.fixture
def sample() -> Callable[..., Sample]:
    """``sample(sample_id, group_id, reward)``; a reward of NaN is an unscorable one."""

    def make(
        sample_id: int,
        group_id: int,
        reward: float,
        *,
        tokens: tuple[int, ...] = (5, 2),
        finish: FinishReason = "stop",
        status: Status | None = None,
        text: str = "text",
    ) -> Sample:
        segment = Segment(tokens, True, tuple(-0.5 for _ in tokens), 0)
        status = status or ("unscorable" if math.isnan(reward) else "ok" if reward >= 1 else "wrong")
        return Sample(
            Trajectory(sample_id, group_id, (1, group_id % 50 + 4), (segment,), finish),
            Row(f"row-{group_id}", "prompt", "answer"),
            text,
            Verdict(reward, status, reward >= 1, "", 1.0, {"part": reward}),
        )

    return make


@pytest.fixture
def config(model_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """``config(train={"steps": 3})``: a recipe that runs here, with some of its tables changed."""
    (tmp_path / "train_rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ASSAY_RUNS", str(tmp_path / "runs"))
    logging.disable_progress_bar()
    whole: dict[str, Any] = {
        "name": "tiny",
        "model": {"name": str(model_folder("llama"))},
        "data": {"train": "builtin:addition?split=train&rows=64", "eval": "builtin:addition?split=heldout&rows=4"},
        "rollout": {"prompts_per_step": 3, "max_new_tokens": 6},
        "algorithm": {"group_size": 4},
        "verifiers": [{"name": "train_rewards:letters"}],
        "optimizer": {"learning_rate": 1e-2},
        "train": {"steps": 4, "checkpoint_every": 2},
        "sft": {"rows_per_step": 8},
    }

    def make(**changes: Any) -> Config:
        tree = {
            name: {**whole.get(name, {}), **table} if isinstance(table, dict) else table
            for name, table in {**whole, **changes}.items()
        }
        return parse_config(tree, "the test's recipe")

    return make


UNEQUAL = re.compile(r"seconds.*|tokens_per_second|verifier_ms_.*|trained_samples|milliseconds")
"""Times, and trained_samples, which counts from the last resume."""


def _without_times(records: list[dict[str, Any]]) -> list[str]:
    return [repr({k: v for k, v in r.items() if not UNEQUAL.fullmatch(k)}) for r in records]


@pytest.fixture
def traces() -> Callable[[Path], dict[str, Any]]:
    """Everything that a finished run leaves and that another one may be compared by; weights as bytes."""

    def read(path: Path) -> dict[str, Any]:
        run = RunFolder(path)
        last = sorted(run.checkpoints.iterdir())[-1]
        return {
            "model": (run.model / "model.safetensors").read_bytes(),
            "optimizer": (last / "optimizer.safetensors").read_bytes(),
            "metrics": _without_times(run.read_metrics()),
            "rollouts": {step: _without_times(run.read_rollouts(step)) for step in run.rollout_steps()},
            "evaluation": run.read_evaluation(),
        }

    return read


class StopAt:
    """Asks a run to stop the ``count``-th time that it reaches a safe point with this label."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __call__(self, label: str, count: int) -> None:
        original, seen = Session.phase, [0]

        def phase(session: Session, at: str, done: int, total: int) -> None:
            seen[0] += at == label
            if seen[0] == count:
                seen[0] += 1
                raise Interrupted("the test asks")
            original(session, at, done, total)

        self._patch.setattr(Session, "phase", phase)


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> StopAt:
    return StopAt(monkeypatch)
