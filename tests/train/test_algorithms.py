"""Every named algorithm runs, and a run that goes on from a checkpoint is the run that was not stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.config import Config
from assay.core.presets import PRESETS
from assay.errors import Interrupted
from assay.train import rl


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_trains_and_resumes_exactly(
    preset: str,
    config: Callable[..., Config],
    stop_at: Callable[[str, int], None],
    traces: Callable[[Path], dict[str, Any]],
    tmp_path: Path,
) -> None:
    algorithm = {"preset": preset, "beta": 0.1, "entropy_bonus": 0.01, "minibatches": 2}
    recipe = config(algorithm={**algorithm, "group_size": 3}, train={"steps": 3, "checkpoint_every": 1})
    whole = rl.train(recipe, tmp_path / "whole")
    assert all(record["grad_norm"] > 0 for record in whole.metrics)
    assert all(record["kl_k3_mean"] is not None for record in whole.metrics)
    stop_at("update", 3)
    with pytest.raises(Interrupted):
        rl.train(recipe, tmp_path / "cut")
    rl.resume(tmp_path / "cut")
    assert traces(tmp_path / "cut") == traces(tmp_path / "whole")


def test_resampling_adds_groups_of_further_prompts_up_to_its_rounds(
    config: Callable[..., Config], tmp_path: Path
) -> None:
    """Every group is dead here, so each round asks for as many again; none of them trains."""
    run = rl.train(
        config(
            verifiers=[{"name": "train_rewards:same"}],
            algorithm={"dead_groups": "resample", "resample_rounds": 2, "group_size": 2},
            train={"steps": 2},
        ),
        tmp_path / "run",
    )
    assert [record["samples_total"] for record in run.metrics] == [3 * 2 * 3, 2 * 3 * 2 * 3]
    assert [record["trained_samples"] for record in run.metrics] == [0, 0]
    ids = [record["sample_id"] for step in run.folder.rollout_steps() for record in run.folder.read_rollouts(step)]
    assert sorted(ids) == list(range(36))
