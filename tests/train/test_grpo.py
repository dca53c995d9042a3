"""Whole runs: they repeat bit by bit, go on bit by bit, and do not move without a signal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import assay
from assay.config import Config
from assay.core.presets import PRESETS
from assay.errors import CheckpointError, ConfigError, EngineError, Interrupted, VerifierError
from assay.models.learner import Learner
from assay.rollout.engine import Engine
from assay.train import rl
from assay.train.canary import Canary
from assay.train.run import exclusive, load_run

Traces = Callable[[Path], dict[str, Any]]


def start_weights(config: Config) -> bytes:
    return (Path(config.model.name) / "model.safetensors").read_bytes()


def test_the_same_recipe_gives_the_same_bytes(config: Callable[..., Config], traces: Traces) -> None:
    first, second = assay.train(config()), assay.train(config())
    assert first.path != second.path
    left = traces(first.path)
    assert traces(second.path) == left
    assert left["model"] != start_weights(config())
    assert traces(assay.train(config(seed=1)).path)["rollouts"] != left["rollouts"]


def test_what_a_run_leaves(config: Callable[..., Config]) -> None:
    run = assay.train(config(), out="here")
    assert run.path == Path("here")
    assert {p.name for p in run.path.iterdir()} == {
        *("checkpoints", "config.toml", "environment.json", "evaluation.json", "metrics.jsonl", "model"),
        *("report.html", "rollouts", "tensorboard"),
    }
    assert [p.name for p in sorted((run.path / "checkpoints").iterdir())] == ["step-000002", "step-000004"]
    assert run.config == config()
    assert [m["step"] for m in run.metrics] == [1, 2, 3, 4]
    assert [m["samples_total"] for m in run.metrics] == [12, 24, 36, 48]
    assert set(run.evaluation) == {"before", "after"}
    assert (run.evaluation["before"]["step"], run.evaluation["after"]["step"]) == (0, 4)
    assert len(run.folder.read_rollouts(1)) == 12
    needed = "step reward_mean zero_variance_rate informative_rate kl_k3_mean kl_k3_min entropy length_mean "
    needed += "truncation_rate clip_rate grad_norm learning_rate tokens_per_second seconds samples_total"
    for record in run.metrics:
        assert set(needed.split()) <= set(record)
        assert record["kl_k3_mean"] is None
        assert record["sampler_logprob_gap_max"] < 1e-4
        assert record["canary_gap"] < 1e-4
        assert record["ratio_max_deviation"] == 0
    model = AutoModelForCausalLM.from_pretrained(run.model)
    last = AutoModelForCausalLM.from_pretrained(run.path / "checkpoints" / "step-000004" / "model")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), last.parameters(), strict=True))


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(
    config: Callable[..., Config], traces: Traces, stop_at: Callable[[str, int], None]
) -> None:
    recipe = config(algorithm={"minibatches": 2, "epochs": 2}, train={"eval_every": 2})
    whole = traces(assay.train(recipe, out="whole").path)
    for label, count, step in (
        *(("evaluation", 2, 0), ("rollout", 1, 0), ("rollout", 9, 1), ("update", 1, 0), ("update", 3, 2)),
        *(("evaluation", 10, 2), ("evaluation", 14, 4)),
    ):
        stop_at(label, count)
        folder = Path(f"{label}-{count}")
        with pytest.raises(Interrupted, match=f"stopped after step {step}; go on with: assay train --resume {folder}"):
            assay.train(recipe, out=folder)
        assert traces(rl.resume(folder).path) == whole, folder


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_lora_with_a_reference_goes_on_to_the_same_bytes(
    schedule: str, config: Callable[..., Config], traces: Traces, stop_at: Callable[[str, int], None]
) -> None:
    recipe = config(
        model={"lora_rank": 4}, algorithm={"beta": 0.05}, optimizer={"schedule": schedule, "warmup_steps": 2}
    )
    whole = assay.train(recipe, out="whole")
    assert whole.metrics[0]["kl_k3_mean"] == pytest.approx(0, abs=1e-6)
    assert all(m["kl_k3_min"] >= 0 for m in whole.metrics)
    assert whole.metrics[-1]["kl_k3_mean"] > 1e-6
    adapter = whole.path / "checkpoints" / "step-000004" / "model" / "adapter_model.safetensors"
    assert all(torch.isfinite(t).all() for t in load_file(adapter).values())
    # model/ is a plain one, with the adapters merged in.
    AutoModelForCausalLM.from_pretrained(whole.model)
    assert not (whole.model / "adapter_config.json").exists()

    stop_at("update", 3)
    with pytest.raises(Interrupted):
        assay.train(recipe, out="cut")
    assert traces(rl.resume(Path("cut")).path) == traces(whole.path)


def test_full_fine_tuning_keeps_its_reference_over_a_resume(
    config: Callable[..., Config], traces: Traces, stop_at: Callable[[str, int], None]
) -> None:
    recipe = config(algorithm={"beta": 0.5, "dead_groups": "keep_kl"})
    whole = assay.train(recipe, out="whole")
    assert whole.metrics[-1]["kl_k3_mean"] > 1e-6
    stop_at("update", 3)
    with pytest.raises(Interrupted):
        assay.train(recipe, out="cut")
    assert traces(rl.resume(Path("cut")).path) == traces(whole.path)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_runs(preset: str, config: Callable[..., Config]) -> None:
    run = assay.train(config(algorithm={"preset": preset}, train={"steps": 1}))
    assert (run.model / "model.safetensors").read_bytes() != start_weights(config())


def test_the_slow_engine_gives_the_same_texts(config: Callable[..., Config]) -> None:
    recipes = [config(rollout={"engine": name}, train={"steps": 1}) for name in ("paged", "reference")]
    paged, reference = (assay.train(recipe).folder.read_rollouts(1) for recipe in recipes)
    assert [row["completion"] for row in paged] == [row["completion"] for row in reference]


def test_identical_rewards_leave_the_weights_as_they_were(config: Callable[..., Config]) -> None:
    run = assay.train(
        config(verifiers=[{"name": "train_rewards:same"}], optimizer={"weight_decay": 0.1}, train={"steps": 2})
    )
    assert [m["zero_variance_rate"] for m in run.metrics] == [1.0, 1.0]
    assert [m["informative_rate"] for m in run.metrics] == [0.0, 0.0]
    assert all(m[name] is None for m in run.metrics for name in ("loss", "grad_norm", "learning_rate", "entropy"))
    assert run.metrics[-1]["trained_samples"] == 0
    before, after = (load_file(Path(at) / "model.safetensors") for at in (config().model.name, run.model))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_step_without_any_reward_stops_the_run_and_says_why(config: Callable[..., Config]) -> None:
    with pytest.raises(VerifierError, match="none of the step's 12 completions could be graded; the first: ") as ended:
        assay.train(config(verifiers=[{"name": "train_rewards:unscorable"}]), out="cut")
    assert "There is no whole checkpoint yet." in str(ended.value)
    assert load_run("cut").metrics == []


def test_a_fault_of_the_engine_names_the_checkpoint_to_go_on_from(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = Canary.check, [0]

    def check(canary: Canary, engine: Engine, learner: Learner) -> float:
        calls[0] += 1
        if calls[0] == 4:
            raise EngineError("they disagree")
        return original(canary, engine, learner)

    monkeypatch.setattr(Canary, "check", check)
    with pytest.raises(EngineError, match=r"they disagree\nThe last whole checkpoint is cut/checkpoints/step-000002\."):
        assay.train(config(), out="cut")


def test_one_run_is_written_by_one_process(config: Callable[..., Config]) -> None:
    run = assay.train(config(train={"steps": 1}), out="busy")
    with exclusive(run.path), pytest.raises(ConfigError, match="another process is writing the run busy"):
        rl.resume(run.path, ["train.steps=2"])
    rl.resume(run.path, ["train.steps=2"])


def test_a_cache_too_small_for_one_answer_is_refused_before_the_run(config: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match=r"the longest prompt cannot be answered: .*kv_cache_gb allows 1e-06"):
        assay.train(config(rollout={"kv_cache_gb": 1e-6}), out="none")
    assert not Path("none").exists()


def test_a_finished_run_goes_further_only_if_asked(config: Callable[..., Config], traces: Traces) -> None:
    whole = assay.train(config(), out="whole")
    short = assay.train(config(train={"steps": 2}), out="short")
    with pytest.raises(ConfigError, match="short has finished its 2 steps; to train further, add --steps N"):
        rl.resume(short.path)
    rl.resume(short.path, ["train.steps=4"])
    assert traces(short.path) == traces(whole.path)
    assert short.config.train.steps == 4
    with pytest.raises(ConfigError, match="has finished its 4 steps"):
        rl.resume(short.path)


def test_a_folder_that_cannot_go_on_says_why(config: Callable[..., Config]) -> None:
    with pytest.raises(CheckpointError, match="none is no run folder"):
        rl.resume(Path("none"))
    run = assay.train(config(train={"steps": 1}))
    from assay.train import sft  # noqa: PLC0415

    with pytest.raises(ConfigError, match="is a run of `assay train`; resume it with that command"):
        sft.resume(run.path)


def test_a_second_run_of_a_recipe_is_numbered_and_none_is_overwritten(config: Callable[..., Config]) -> None:
    recipe = config(train={"steps": 1})
    assert [assay.train(recipe).path.name for _ in range(3)] == ["tiny", "tiny-2", "tiny-3"]
    with pytest.raises(
        ConfigError, match=r"is not empty; choose a new folder, or go on with its run by `--resume runs/tiny`"
    ):
        assay.train(recipe, out="runs/tiny")
    Path("file").write_text("")
    with pytest.raises(ConfigError, match="file is not empty"):
        assay.train(recipe, out="file")
    with pytest.raises(ConfigError, match="the run folder cannot be made"):
        assay.train(recipe, out="file/inside")
