"""Gradient of one quickstart step: completions packed as a prefix tree, against each one computed alone.

    python benchmarks/packing.py

Both compute the same loss and gradient with the same code; only what is computed together differs.
"""

from __future__ import annotations

import time
from pathlib import Path

from assay.config import load_config
from assay.models.learner import TrainGroup, TrainSample
from assay.models.local_learner import LocalLearner
from assay.models.objective import Objective
from assay.models.packing import packed_length
from assay.rollout.engine import generate
from assay.train.assembly import Job, build
from assay.train.groups import denominators_of
from assay.train.job import optimizer_settings
from assay.train.rollouts import ask

RECIPE = Path(__file__).parent.parent / "recipes" / "json-smollm2-grpo.toml"
ALONE = 1
"""A micro-batch bound that no completion meets, so that each is computed by itself."""


def main() -> None:
    """Sample one step, compute its gradient both ways (twice, the second one counts), print the ratio."""
    job = build(load_config(RECIPE))
    groups = sampled_groups(job)
    sequences = [g.prompt_ids + s.completion_ids[:-1] for g in groups for s in g.samples]
    alone, packed = sum(map(len, sequences)), packed_length(sequences)
    print(f"{len(sequences)} completions: {alone} positions alone, {packed} packed ({alone / packed:.1f} times fewer)")
    seconds = {name: gradient_seconds(job, groups, bound) for name, bound in (("packed", packed), ("alone", ALONE))}
    print(", ".join(f"{name} {value:.1f} s" for name, value in seconds.items()), end=": ")
    print(f"packed takes {seconds['packed'] / seconds['alone']:.2f} of the time")


def sampled_groups(job: Job) -> list[TrainGroup]:
    """The first step's completions, with alternating advantages."""
    c = job.config
    prompts = list(range(c.rollout.prompts_per_step))
    trajectories = generate(job.engine, ask(job, 1, prompts))
    by_group: dict[int, list[TrainSample]] = {}
    for i, t in enumerate(trajectories):
        sample = TrainSample(t.completion_ids, t.action_mask, (-1.0) ** i, t.logprobs)
        by_group.setdefault(t.group_id, []).append(sample)
    prompt_of = {t.group_id: t.prompt_ids for t in trajectories}
    return [TrainGroup(prompt_of[g], tuple(s), sum(len(x.mask) for x in s)) for g, s in by_group.items()]


def gradient_seconds(job: Job, groups: list[TrainGroup], micro_batch_tokens: int) -> float:
    """Seconds of the second of two gradients."""
    c = job.config
    objective = Objective(job.preset, 0.0, c.rollout.temperature)
    learner = LocalLearner(job.policy, objective, optimizer_settings(c), micro_batch_tokens=micro_batch_tokens)
    denominators = denominators_of(groups, c.rollout.max_new_tokens)
    for _ in range(2):
        began = time.perf_counter()
        learner.forward_backward(groups, denominators)
        seconds = time.perf_counter() - began
        learner.discard_gradients()
    return seconds


if __name__ == "__main__":
    main()
