"""From scored samples to groups with advantages, and from groups to what the learner trains on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from assay.core.advantage import ADVANTAGES
from assay.core.loss import Denominators
from assay.core.presets import Preset
from assay.core.zero_variance import is_zero_variance
from assay.models.learner import TrainGroup, TrainSample
from assay.types import Group, Sample


def make_groups(samples: Sequence[Sample], preset: Preset) -> list[Group]:
    """Group by group id; rewards become advantages, and each group is judged by the one guard."""
    by_group = sorted(samples, key=lambda s: (s.trajectory.group_id, s.trajectory.sample_id))
    return [
        _group(group_id, tuple(members), preset)
        for group_id, members in groupby(by_group, key=lambda s: s.trajectory.group_id)
    ]


def to_train(groups: Sequence[Group], dead_groups: str) -> tuple[list[TrainGroup], Counter[str]]:
    """Groups for the learner, and how many samples were dropped for which reason.

    Unscorable samples never train. Dead groups are dropped whole, or (keep_kl) train with advantage 0.
    """
    kept: list[TrainGroup] = []
    dropped: Counter[str] = Counter()
    for group in groups:
        scorable = [i for i, s in enumerate(group.samples) if s.verdict.status not in ("crash", "unscorable")]
        dropped["unscorable"] += len(group.samples) - len(scorable)
        if group.state == "unscorable" or (group.dead and dead_groups == "drop"):
            dropped[group.state] += len(scorable)
            continue
        samples = tuple(_train_sample(group.samples[i], group.advantages[i]) for i in scorable)
        prompt = group.samples[0].trajectory.prompt_ids
        kept.append(TrainGroup(prompt, samples, sum(sum(s.mask) for s in samples)))
    return kept, +dropped


def denominators_of(groups: Sequence[TrainGroup], max_length: int) -> Denominators:
    """Counts over the whole optimiser minibatch."""
    return Denominators(
        sequences=sum(len(g.samples) for g in groups),
        tokens=sum(g.group_loss_tokens for g in groups),
        prompts=len(groups),
        max_length=max_length,
    )


def _group(group_id: int, samples: tuple[Sample, ...], preset: Preset) -> Group:
    rewards_1G = torch.tensor([[s.verdict.reward for s in samples]], dtype=torch.float64)
    advantages = _advantages(rewards_1G, preset)[0].tolist()
    scorable = int((~torch.isnan(rewards_1G)).sum())
    if scorable < 2:
        return Group(group_id, samples, tuple(advantages), "unscorable")
    dead = bool(is_zero_variance(rewards_1G)[0])
    return Group(group_id, samples, tuple(advantages), "zero_variance" if dead else "informative")


def _advantages(rewards_PG: Tensor, preset: Preset) -> Tensor:
    if preset.advantage == "group_relative":
        return ADVANTAGES["group_relative"](rewards_PG, eps=preset.advantage_eps, ddof=preset.ddof)
    return ADVANTAGES[preset.advantage](rewards_PG)


def _train_sample(sample: Sample, advantage: float) -> TrainSample:
    t = sample.trajectory
    return TrainSample(t.completion_ids, t.action_mask, advantage, t.logprobs)
