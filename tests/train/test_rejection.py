"""Rejection sampling: what is kept, and a file that is whole or not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.config import Config
from assay.data.sources import load_rows
from assay.errors import ConfigError, Interrupted, VerifierError
from assay.telemetry.progress import Progress
from assay.train import rejection, sft
from assay.train.rejection import kept_rows
from assay.types import Row, Sample

REWARDS = """
def even(prompts, completions, **columns):
    return [float(len(c) % 2 == 0) for c in completions]

def never(prompts, completions, **columns):
    return [0.0 for _ in completions]
"""


@pytest.fixture
def even(config: Callable[..., Config], tmp_path: Path) -> Config:
    (tmp_path / "rejection_rewards.py").write_text(REWARDS)
    return config(verifiers=[{"name": "rejection_rewards:even"}], data={"train": "builtin:addition?split=train&rows=6"})


def test_the_first_different_correct_texts_that_ended_are_kept_with_the_rows_columns(
    sample: Callable[..., Sample],
) -> None:
    row = Row("r", ({"role": "user", "content": "q"},), 7, {"steps": 2, "response": "worked"})
    group = [
        replace(sample(i, 0, reward, text=text, finish=finish), row=row)
        for i, (text, reward, finish) in enumerate(
            [
                ("a", 0, "stop"),
                ("b", 1, "length"),
                ("c", 1, "stop"),
                ("c", 1, "stop"),
                ("\ud800", 1, "stop"),
                ("d", 1, "stop"),
            ]
        )
    ]

    def texts(per_prompt: int, keep: Any) -> list[str]:
        return [kept["response"] for kept in kept_rows(group, per_prompt, keep)]

    assert texts(1, "correct") == ["c"]
    assert texts(9, "correct") == ["c", "d"]
    assert texts(9, "all") == ["a", "c", "d"]
    assert kept_rows(group, 1, "correct")[0] == {
        "prompt": [{"role": "user", "content": "q"}],
        "answer": 7,
        "steps": 2,
        "response": "c",
    }


def test_the_rows_are_correct_the_same_every_time_and_train_an_sft(even: Config, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    result = rejection.sample(even, out, samples=8, per_prompt=2)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert result.kept == len(lines) > 0
    assert (result.prompts, result.completions) == (6, 48)
    assert all(len(line["response"]) % 2 == 0 for line in lines)
    assert 0 < result.solved <= 6
    assert result.solved <= result.correct <= 48
    prompts = [line["prompt"] for line in lines]
    assert max(prompts.count(p) for p in prompts) <= 2
    again = tmp_path / "again.jsonl"
    rejection.sample(even, again, samples=8, per_prompt=2)
    assert again.read_bytes() == out.read_bytes()
    assert len(load_rows(str(out))) == len(lines)
    data = even.data.model_copy(update={"train": str(out)})
    run = sft.train(even.model_copy(update={"data": data, "train": even.train.model_copy(update={"steps": 1})}))
    assert run.model.is_dir()


def test_nothing_correct_is_an_error_and_leaves_no_file(config: Callable[..., Config], tmp_path: Path) -> None:
    (tmp_path / "rejection_rewards.py").write_text(REWARDS)
    with pytest.raises(VerifierError, match="none of the 128 completions is correct"):
        rejection.sample(
            config(verifiers=[{"name": "rejection_rewards:never"}]), tmp_path / "r.jsonl", samples=2, per_prompt=1
        )
    assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize(
    ("name", "says"), [("rows.txt", "must end in .jsonl"), ("no/rows.jsonl", "no folder"), ("old.jsonl", "exists")]
)
def test_an_out_that_cannot_be_is_refused_before_work_starts(
    even: Config, tmp_path: Path, name: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old.jsonl").write_text("mine")
    monkeypatch.setattr(rejection, "build_policy", lambda config: pytest.fail("a model was loaded"))
    with pytest.raises(ConfigError, match=says):
        rejection.sample(even, tmp_path / name, samples=2, per_prompt=1)
    assert (tmp_path / "old.jsonl").read_text() == "mine"


def test_an_interrupt_leaves_no_file(even: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise Interrupted("the test asks")

    monkeypatch.setattr(Progress, "phase", stop)
    with pytest.raises(Interrupted):
        rejection.sample(even, tmp_path / "rows.jsonl", samples=2, per_prompt=1)
    assert not list(tmp_path.glob("*.jsonl"))
