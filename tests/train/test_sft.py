"""Supervised learning: the loss by hand, runs that repeat and go on bit by bit, and stopping when enough is learnt."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.config import Config
from assay.errors import ConfigError, Interrupted
from assay.models.policy import Policy
from assay.train import rl, sft
from assay.types import Row

Traces = Callable[[Path], dict[str, Any]]


def test_the_loss_is_the_mean_over_all_response_tokens(load: Callable[..., Policy], plain: Callable[..., Any]) -> None:
    batch = [((5, 6), (7, 2)), ((5, 6, 9), (7, 8, 11, 2)), ((5, 6), (7, 2))]
    total, count = 0.0, 0
    for prompt, response in batch:
        logits = plain()(torch.tensor([prompt + response])).logits[0].double()
        logprobs = torch.log_softmax(logits, dim=-1)
        for i, token in enumerate(response):
            total -= logprobs[len(prompt) - 1 + i, token].item()
            count += 1
    assert count == 8
    assert sft.negative_log_likelihood(load(), batch).item() == pytest.approx(total, rel=1e-5)
    policy = load()
    for max_tokens in (1, 6, 100):
        loss = sft.forward_backward(policy, batch, max_tokens, lambda *_: None)
        assert loss == pytest.approx(total / count, rel=1e-5)


def test_micro_batches_change_neither_loss_nor_gradient(load: Callable[..., Policy]) -> None:
    batch = [((5, 6), (7, 2)), ((5, 6, 9), (7, 8, 11, 2)), ((9, 9), (7, 2)), ((4,), (30,))]
    gradients = []
    for max_tokens, parts in ((1, 4), (8, 2), (100, 1)):
        assert len(sft.micro_batches(batch, max_tokens)) == parts
        policy = load()
        sft.forward_backward(policy, batch, max_tokens, lambda *_: None)
        gradients.append(torch.cat([p.grad.flatten() for p in policy.trainable().values() if p.grad is not None]))
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-5, atol=1e-6)


def test_the_response_is_its_column_or_the_answer() -> None:
    assert sft.response_text(Row("r", "p", "122")) == "122"
    assert sft.response_text(Row("r", "p", {"a": 1})) == '{"a": 1}'
    assert sft.response_text(Row("r", "p", "122", {"response": "It is 122."})) == "It is 122."


def test_it_learns_and_the_same_recipe_gives_the_same_bytes(config: Callable[..., Config], traces: Traces) -> None:
    recipe = config(train={"steps": 8})
    first, second = sft.train(recipe), sft.train(recipe)
    assert traces(first.path) == traces(second.path)
    losses = [m["loss"] for m in first.metrics]
    assert losses[-1] < losses[0]
    assert [m["samples_total"] for m in first.metrics] == [8 * i for i in range(1, 9)]
    assert all(math.isfinite(m["grad_norm"]) for m in first.metrics)


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(
    config: Callable[..., Config], traces: Traces, stop_at: Callable[[str, int], None]
) -> None:
    recipe = config(train={"steps": 5, "eval_every": 2}, optimizer={"schedule": "cosine"})
    whole = traces(sft.train(recipe, Path("whole")).path)
    for label, count, step in (("update", 1, 0), ("update", 4, 3), ("evaluation", 1, 0), ("evaluation", 9, 2)):
        stop_at(label, count)
        folder = Path(f"{label}-{count}")
        with pytest.raises(Interrupted, match=f"stopped after step {step}; go on with: assay sft --resume {folder}"):
            sft.train(recipe, folder)
        assert traces(sft.resume(folder).path) == whole, folder
    with pytest.raises(ConfigError, match="has finished its 5 steps"):
        sft.resume(folder)
    with pytest.raises(ConfigError, match="is a run of `assay sft`; resume it with that command"):
        rl.resume(folder)


def always_right(steps: int) -> dict[str, Any]:
    return {
        "verifiers": [{"name": "train_rewards:right"}],
        "sft": {"rows_per_step": 8, "stop_at_correct": 0.5},
        "train": {"steps": steps, "eval_every": 2, "checkpoint_every": 100},
    }


def test_it_stops_once_enough_is_learnt(config: Callable[..., Config]) -> None:
    run = sft.train(config(**always_right(10)))
    assert [m["step"] for m in run.metrics] == [1, 2]
    assert run.evaluation["after"]["step"] == 2
    assert [p.name for p in (run.path / "checkpoints").iterdir()] == ["step-000002"]


@pytest.mark.parametrize("count", [9, 14])
def test_a_stop_in_the_deciding_evaluation_or_after_it_decides_alike(
    count: int, config: Callable[..., Config], stop_at: Callable[[str, int], None]
) -> None:
    stop_at("evaluation", count)
    with pytest.raises(Interrupted, match="stopped after step 2"):
        sft.train(config(**always_right(10)), Path("cut"))
    run = sft.resume(Path("cut"))
    assert [m["step"] for m in run.metrics] == [1, 2]
    assert [e["step"] for e in run.evaluation["during"]] == [2]
