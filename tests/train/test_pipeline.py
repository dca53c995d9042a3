"""A pipeline: checked as a whole before it starts, each stage from the last model, and going on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from assay.config import Config
from assay.errors import AssayError, ConfigError, DataError, Interrupted
from assay.train import assembly, pipeline, rejection, sft
from assay.train.pipeline_table import table
from assay.train.run import load_run

Write = Callable[..., Path]

REWARDS = """
def even(prompts, completions, **columns):
    return [float(len(c) % 2 == 0) for c in completions]
"""

STAGES: list[dict[str, Any]] = [
    {"name": "cold", "command": "sft", "recipe": "tiny.toml", "set": {"train": {"steps": 2}}},
    {"name": "rl", "command": "train", "recipe": "tiny.toml"},
    {"name": "samples", "command": "sample", "recipe": "tiny.toml", "samples": 4, "per_prompt": 2},
    {"name": "again", "command": "sft", "recipe": "tiny.toml", "rows_from": "samples", "set": {"train.steps": 1}},
]


@pytest.fixture
def write(config: Callable[..., Config], tmp_path: Path) -> Write:
    """``write(stages=…, evaluation=…)``: the path of a pipeline file beside its recipe."""
    (tmp_path / "pipeline_rewards.py").write_text(REWARDS)
    recipe = config(
        data={"train": "builtin:addition?split=train&rows=8", "eval": "builtin:addition?split=heldout&rows=5"},
        rollout={"prompts_per_step": 2},
        verifiers=[{"name": "pipeline_rewards:even"}],
        train={"steps": 2, "checkpoint_every": 1},
    )
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "tiny.toml").write_text(recipe.to_toml())

    def make(stages: list[dict[str, Any]] = STAGES, **evaluation: Any) -> Path:
        whole = {"name": "row", "evaluation": {"recipe": "tiny.toml", "samples": 2, **evaluation}, "stages": stages}
        path = tmp_path / "files" / "pipeline.toml"
        path.write_text(tomli_w.dumps(whole))
        return path

    return make


def test_each_stage_starts_from_the_last_model_and_is_measured(write: Write, tmp_path: Path) -> None:
    plan, measured = pipeline.run(write(prompts=3))
    folder = tmp_path / "runs" / "row"
    assert plan.folder == Path("runs/row") or plan.folder == folder
    models = {name: load_run(folder / name).config.model.name for name in ("cold", "rl", "again")}
    assert models["rl"] == str(plan.folder / "cold" / "model")
    assert models["again"] == str(plan.folder / "rl" / "model")
    assert load_run(folder / "again").config.data.train == str(plan.folder / "samples" / "rows.jsonl")
    assert [len(load_run(folder / name).metrics) for name in ("cold", "rl", "again")] == [2, 2, 1]
    # The pipeline measures, the stages do not.
    assert not load_run(folder / "rl").evaluation
    assert list(measured["evaluations"]) == ["start", "cold", "rl", "again"]
    assert list(measured["seconds"]) == ["cold", "rl", "samples", "again"]
    for result in measured["evaluations"].values():
        assert len(result["correct"]) == result["n"] == 3
        assert set(result["pass_at"]) == {"1", "2"}
    assert json.loads((folder / "pipeline.json").read_text()) == measured


def test_what_is_finished_is_not_done_again(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(start=False)
    _, first = pipeline.run(path)
    assert "start" not in first["evaluations"]
    for module, name in ((pipeline, "run_stage"), (pipeline, "measure")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("done again"))
    assert pipeline.run(path)[1] == first


def test_another_way_of_measuring_measures_again_and_trains_nothing(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = pipeline.run(write(STAGES[:1], prompts=2))
    monkeypatch.setattr(pipeline, "run_stage", lambda *_: pytest.fail("done again"))
    _, second = pipeline.run(write(STAGES[:1], prompts=4))
    assert [len(r["evaluations"]["cold"]["correct"]) for r in (first, second)] == [2, 4]
    assert first["seconds"] == second["seconds"]


@pytest.mark.parametrize(("label", "count"), [("update", 3), ("rollout", 1)])
def test_an_interrupted_stage_goes_on_to_the_same_bytes(
    write: Write, tmp_path: Path, label: str, count: int, traces: Any, stop_at: Callable[[str, int], None]
) -> None:
    path = write(STAGES[:2], start=False, prompts=2)
    pipeline.run(path, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        type(stop_at)(patch)(label, count)  # type: ignore[call-arg]
        with pytest.raises(Interrupted, match=r"assay pipeline .*pipeline.toml --out .*parts"):
            pipeline.run(path, tmp_path / "parts")
    _, measured = pipeline.run(path, tmp_path / "parts")
    for name in ("cold", "rl"):
        whole, parts = (traces(tmp_path / folder / name) for folder in ("whole", "parts"))
        assert parts == whole
    assert measured["seconds"]["rl"] > 0


def test_a_stage_killed_before_its_first_checkpoint_starts_again(write: Write, tmp_path: Path) -> None:
    path = write(STAGES[:1], start=False, prompts=2)
    plan, _ = pipeline.run(path)
    (plan.folder / "other").mkdir()
    for name in ("model", "checkpoints"):
        (plan.folder / "cold" / name).rename(plan.folder / "other" / name)
    pipeline.run(path)
    assert load_run(plan.folder / "cold").model.is_dir()


def test_a_killed_sampling_starts_again(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(STAGES[:3], start=False, prompts=2)
    real = rejection.sample

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(rejection, "sample", killed)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(path)
    monkeypatch.setattr(rejection, "sample", real)
    plan, measured = pipeline.run(path)
    assert (plan.folder / "samples" / "rows.jsonl").is_file()
    assert measured["seconds"]["samples"] > 0


def changed(i: int, **fields: Any) -> list[dict[str, Any]]:
    return [{**stage, **(fields if j == i else {})} for j, stage in enumerate(STAGES)]


REFUSED: list[tuple[list[dict[str, Any]], str]] = [
    (changed(1, name="cold"), r"stages\.1 \(cold\): the name is taken"),
    (changed(1, name="start"), r"stages\.1 \(start\): the name is taken"),
    (changed(3, rows_from="sample"), r"no earlier sample stage \(did you mean 'samples'\?\); allowed: samples"),
    (changed(0, rows_from="samples"), "no earlier sample stage; allowed: none here"),
    (changed(2, rows_from="samples"), "rows_from is for stages that train"),
    (changed(1, samples=4), "samples and per_prompt are for command = 'sample'"),
    (changed(1, command="ppo"), r"stages\.1\.command: input should be 'sft', 'train' or 'sample'"),
    (changed(1, name="a/b"), r"stages\.1\.name: string should match pattern"),
    ([STAGES[2]], "none of them trains"),
    (changed(1, recipe="none.toml"), "there is no recipe"),
    (changed(3, set={"train.stepz": 1}), r"train\.stepz: unknown key"),
    (changed(1, set={"data.train": "none.jsonl"}), "there is no file"),
    (changed(1, set={"algorithm.preset": "grpoo"}), "stage rl: algorithm.preset: there is no 'grpoo'"),
    (changed(1, set={"verifiers": [{"name": "exakt"}]}), "did you mean 'exact'"),
    (changed(0, set={"model.name": "runs/none"}), "there is no model folder"),
]


@pytest.mark.parametrize(("stages", "says"), REFUSED)
def test_a_pipeline_that_could_not_run_to_its_end_is_refused_before_it_starts(
    write: Write, tmp_path: Path, stages: list[dict[str, Any]], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sft, assembly):
        monkeypatch.setattr(module, "build_policy", lambda config: pytest.fail("a model was loaded"))
    with pytest.raises(AssayError, match=says) as caught:
        pipeline.run(write(stages))
    assert caught.value.exit_code == 2
    assert not (tmp_path / "runs").exists()


def test_an_evaluation_without_held_out_rows_and_files_that_are_no_pipeline_are_refused(
    write: Write, tmp_path: Path, config: Callable[..., Config]
) -> None:
    recipes = {"blind.toml": None, "lost.toml": "lost.jsonl"}
    for name, data in recipes.items():
        (tmp_path / "files" / name).write_text(config(data={"eval": data}).to_toml())
    with pytest.raises(ConfigError, match=r"names no data\.eval"):
        pipeline.run(write(recipe="blind.toml"))
    with pytest.raises(DataError, match="there is no file"):
        pipeline.run(write(recipe="lost.toml"))
    with pytest.raises(ConfigError, match="there is no pipeline file"):
        pipeline.run(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("a = ")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        pipeline.run(tmp_path / "broken.toml")
    with pytest.raises(ConfigError, match="is not a valid pipeline"):
        pipeline.run(tmp_path / "files" / "tiny.toml")


def test_a_stage_that_has_begun_cannot_change_and_one_that_has_not_can(write: Write) -> None:
    pipeline.run(write(STAGES[:2], start=False, prompts=2))
    faster = changed(1, set={"optimizer.learning_rate": 1e-3})
    with pytest.raises(ConfigError, match=r"stage rl has begun with another recipe \(optimizer.learning_rate differ\)"):
        pipeline.run(write(faster[:2], start=False, prompts=2))
    more = changed(2, samples=2)
    assert "samples" in pipeline.run(write(more[:3], start=False, prompts=2))[1]["seconds"]


def test_a_stage_of_a_model_that_is_gone_is_not_gone_on_with(write: Write, tmp_path: Path) -> None:
    plan, _ = pipeline.run(write(STAGES[:2], start=False, prompts=2))
    (plan.folder / "cold").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="rl exists, but a stage before it is not finished"):
        pipeline.run(write(STAGES[:2], start=False, prompts=2))


def test_the_table_by_hand() -> None:
    def result(share: float, correct: list[int], thinking: float | None) -> dict[str, Any]:
        return {
            "pass_at": {"1": share, "8": 0.75},
            "pass_at_interval": {"1": [share / 2, 1.0], "8": [0.5, 1.0]},
            "correct": correct,
            "formed_share": 0.5,
            "thinking_tokens": thinking,
        }

    measured = {
        "seconds": {"cold": 61.0, "samples": 5.0},
        "evaluations": {"start": result(0.0, [0, 0, 0], None), "cold": result(0.5, [4, 4, 4], 12.34)},
    }
    lines = [line.split() for line in table(["cold", "samples", "rl"], measured).splitlines()]
    assert lines[0][0] == "stage"
    assert lines[1] == ["start", "0.0%", "0.0%", "–", "100.0%", "75.0%", "(k=8)", "50.0%", "–"]
    # Three differences of the same sign: 2 of 8 patterns are as far from 0.
    assert lines[2] == [
        "cold",
        "50.0%",
        "25.0%",
        "–",
        "100.0%",
        "+50.0",
        "0.25",
        "75.0%",
        "(k=8)",
        "50.0%",
        "12.3",
        "1:01",
    ]
    assert lines[3] == ["samples", "0:05"]
    assert len(lines) == 4
