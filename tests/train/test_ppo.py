"""PPO: advantages by hand, runs that learn, go on exactly, and take a reward model or a single completion."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import assay
from assay.config import Config
from assay.core.presets import PRESETS
from assay.errors import ConfigError, Interrupted
from assay.models.learner import TrainGroup, TrainSample
from assay.train.ppo import estimate
from assay.train.rl import resume

PLAIN = replace(PRESETS["ppo"], whiten=False)


def group(*values: list[float], reward: float = 1.0) -> TrainGroup:
    samples = tuple(
        TrainSample(
            (5,) * len(row),
            (True,) * len(row),
            reward,
            (-1.0,) * len(row),
            old_logprobs=torch.full((len(row),), -1.0),
            ref_logprobs=torch.full((len(row),), -1.5),
            old_values=torch.tensor(row),
        )
        for row in values
    )
    return TrainGroup((7,), samples, sum(map(len, values)))


def rows(groups: list[TrainGroup], name: str) -> list[list[float]]:
    return [getattr(s, name).tolist() for g in groups for s in g.samples]


def test_advantages_and_returns_by_hand() -> None:
    """r = [0, 0, 1], V = .5, gamma 1, lambda .95: A = [.45125, .475, .5] and R = A + V."""
    groups, _ = estimate([group([0.5, 0.5, 0.5])], PLAIN, 0.0)
    assert rows(groups, "advantages")[0] == pytest.approx([0.45125, 0.475, 0.5])
    assert rows(groups, "returns")[0] == pytest.approx([0.95125, 0.975, 1.0])


def test_the_kl_is_part_of_every_tokens_reward() -> None:
    """k1 = .5 on each token, beta .1: with V = 0 and lambda 1 the advantage is the reward to go."""
    groups, _ = estimate([group([0.0, 0.0])], replace(PLAIN, lam=1.0), 0.1)
    assert rows(groups, "advantages")[0] == pytest.approx([0.9, 0.95])


def test_whitening_changes_advantages_and_not_returns() -> None:
    given = [group([0.0, 0.0]), group([0.0], reward=0.0)]
    plain, whitened = estimate(given, PLAIN, 0.0)[0], estimate(given, PRESETS["ppo"], 0.0)[0]
    assert rows(plain, "returns") == rows(whitened, "returns")
    flat = torch.tensor([a for row in rows(whitened, "advantages") for a in row])
    assert flat.mean().item() == pytest.approx(0, abs=1e-6)
    assert flat.var(correction=0).item() == pytest.approx(1, abs=1e-6)


def test_what_the_critic_knows_is_measured_against_what_was_earned() -> None:
    _, knows = estimate([group([1.0, 1.0]), group([0.0, 0.0], reward=0.0)], PLAIN, 0.0)
    assert knows == pytest.approx(
        {"explained_variance": 1.0, "explained_variance_early": 1.0, "value_spread": 0.5, "return_spread": 0.5}
    )
    _, late = estimate([group([0.5, 1.0]), group([0.5, 0.0], reward=0.0)], PLAIN, 0.0)
    assert late["explained_variance_early"] == pytest.approx(0)
    assert late["explained_variance"] == pytest.approx(0.5)
    assert estimate([], PLAIN, 0.0) == ([], {})


def test_where_all_earn_the_same_from_the_start_nothing_moves(config: Callable[..., Config]) -> None:
    """With lambda < 1, values of 0 would have made later tokens look better, and whitening would have believed it."""
    run = assay.train(
        config(algorithm={"preset": "ppo"}, verifiers=[{"name": "train_rewards:right"}], train={"steps": 1})
    )
    assert run.metrics[0]["grad_norm"] == 0
    assert run.metrics[0]["value_loss"] == 0
    assert {row["advantage"] for row in run.folder.read_rollouts(1)} <= {None} or all(
        math.isnan(row["advantage"]) for row in run.folder.read_rollouts(1)
    )


def test_a_step_that_trains_on_nothing_knows_nothing(config: Callable[..., Config]) -> None:
    recipe = config(
        algorithm={"preset": "ppo", "mask_truncated": True},
        rollout={"max_new_tokens": 1},
        train={"steps": 1},
        verifiers=[{"name": "train_rewards:same"}],
        seed=3,
    )
    (record,) = assay.train(recipe).metrics
    own = ("value_loss", "critic_grad_norm", "explained_variance", "explained_variance_early", "value_spread")
    assert record["truncation_rate"] == 1
    assert [record[name] for name in own] == [None] * 5


@pytest.mark.slow
@pytest.mark.parametrize(("lora", "dtype"), [(4, "float32"), (4, "bfloat16"), (0, "bfloat16")])
def test_adapters_and_16_bits_go_on_exactly_too(
    lora: int,
    dtype: str,
    config: Callable[..., Config],
    stop_at: Callable[[str, int], None],
    traces: Callable[[Path], dict[str, Any]],
) -> None:
    model = {"lora_rank": lora, "dtype": dtype}
    recipe = config(model=model, algorithm={"preset": "ppo", "beta": 0.1}, train={"steps": 3, "checkpoint_every": 1})
    whole = assay.train(recipe, out="whole")
    assert whole.metrics[-1]["value_spread"] > 0
    stop_at("update", 4)
    with pytest.raises(Interrupted):
        assay.train(recipe, out="cut")
    assert traces(resume(Path("cut")).path) == traces(whole.path)


@pytest.mark.parametrize("backbone", ["own", "actor"])
def test_a_steered_kl_and_a_critic_go_on_exactly(
    backbone: str,
    config: Callable[..., Config],
    stop_at: Callable[[str, int], None],
    traces: Callable[[Path], dict[str, Any]],
) -> None:
    algorithm = {"preset": "ppo", "group_size": 1, "beta": 0.1, "kl_target": 0.01, "kl_horizon": 10.0, "epochs": 2}
    recipe = config(algorithm=algorithm, critic={"backbone": backbone, "learning_rate": 1e-2})
    whole = assay.train(recipe, out="whole")
    betas = [record["beta"] for record in whole.metrics]
    assert betas[0] == 0.1
    assert len(set(betas)) == 4
    assert all(record["value_loss"] > 0 for record in whole.metrics)
    assert whole.metrics[0]["value_spread"] == 0
    assert whole.metrics[-1]["value_spread"] > 0
    stop_at("update", 3)
    with pytest.raises(Interrupted, match="go on with: assay train --resume cut"):
        assay.train(recipe, out="cut")
    assert traces(resume(Path("cut")).path) == traces(whole.path)


@pytest.mark.slow
def test_the_actor_learns_what_earns(config: Callable[..., Config]) -> None:
    run = assay.train(
        config(
            algorithm={"preset": "ppo", "group_size": 2, "epochs": 2, "minibatches": 2},
            rollout={"prompts_per_step": 16},
            optimizer={"learning_rate": 3e-3},
            critic={"learning_rate": 3e-3},
            train={"steps": 20},
        )
    )
    assert run.metrics[-1]["reward_mean"] > run.metrics[0]["reward_mean"] + 0.5


@pytest.mark.slow
def test_the_critic_of_an_actor_that_stands_still_comes_to_know_what_it_will_earn(
    config: Callable[..., Config], model_folder: Callable[..., Path]
) -> None:
    """Each of six letters is a draw of its own, so before the t-th at most (t - 1) / 6 can be known: 0.42 over all."""
    run = assay.train(
        config(
            model={"name": str(model_folder("llama", 0.02))},
            algorithm={"preset": "ppo", "group_size": 2, "epochs": 4, "minibatches": 2},
            rollout={"prompts_per_step": 32},
            optimizer={"learning_rate": 1e-9},
            critic={"learning_rate": 3e-3, "lam": 1.0},
            train={"steps": 30, "checkpoint_every": 30},
        )
    )
    knows = [record["explained_variance"] for record in run.metrics]
    assert knows[0] == pytest.approx(0, abs=1e-9)
    assert 0.12 < sum(knows[-10:]) / 10 < 0.42


def test_a_reward_model_without_verifiers(
    config: Callable[..., Config], reward_model_folder: Callable[..., Path]
) -> None:
    recipe = config(
        algorithm={"preset": "ppo"}, verifiers=[], reward_model={"name": str(reward_model_folder())}, train={"steps": 2}
    )
    run = assay.train(recipe)
    for record in run.metrics:
        assert record["component/reward_model"] == pytest.approx(record["reward_mean"])
        assert record["reward_std"] > 0
    evaluation = run.evaluation["before"]["sampled"]
    assert evaluation["mean_reward"] == pytest.approx(evaluation["components"]["reward_model"])


def test_a_group_of_one_needs_a_critic(config: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match=r"group_size = 1: the baseline of 'grpo' is the group"):
        assay.train(config(algorithm={"group_size": 1}))


@pytest.mark.parametrize("preset", ["ppo", "reinforce_pp"])
def test_what_is_done_with_dead_groups_is_no_question_where_there_are_none(
    preset: str, config: Callable[..., Config]
) -> None:
    with pytest.raises(ConfigError, match=f"algorithm.dead_groups: '{preset}' does not compare within groups"):
        assay.train(config(algorithm={"preset": preset, "dead_groups": "resample"}))


def test_a_critic_table_without_a_critic_is_refused(config: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match=r"\[critic\]: 'grpo' has no critic"):
        assay.train(config(critic={"learning_rate": 1e-3}))


def test_too_little_memory_for_a_critic_is_said_before_the_run(config: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match=r"train.memory_gb = 0.0005 is too little"):
        assay.train(
            config(algorithm={"preset": "ppo"}, rollout={"kv_cache_gb": 1e-6}, train={"memory_gb": 5e-4, "steps": 1})
        )
