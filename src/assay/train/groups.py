"""From scored samples to groups with advantages, and from groups to what the learner trains on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from inspect import signature
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from assay.core.advantage import ADVANTAGES
from assay.core.loss import Denominators
from assay.core.presets import DeadGroups, Preset
from assay.core.zero_variance import is_zero_variance
from assay.models.learner import TrainGroup, TrainSample
from assay.types import Group, GroupState, Sample


def make_groups(samples: Sequence[Sample], preset: Preset) -> list[Group]:
    """Group by group id; rewards become advantages, and each group is judged by the one guard.

    Estimates by token (returns, critic) have no group baseline: there is no advantage of a completion (NaN), and a
    group whose members all earned the same is as informative as any.
    """
    by_group = sorted(samples, key=lambda s: (s.trajectory.group_id, s.trajectory.sample_id))
    members = [tuple(group) for _, group in groupby(by_group, key=lambda s: s.trajectory.group_id)]
    # Groups of uneven size are filled up with NaN, which no estimator reads.
    rewards_PG = pad_sequence(
        [torch.tensor([s.verdict.reward for s in group], dtype=torch.float64) for group in members],
        batch_first=True,
        padding_value=torch.nan,
    )
    advantages_PG, dead_P = _advantages(rewards_PG, preset), is_zero_variance(rewards_PG)
    scorable_P = (~torch.isnan(rewards_PG)).sum(dim=1)
    return [
        Group(
            group[0].trajectory.group_id,
            group,
            tuple(advantages_PG[p, : len(group)].tolist()),
            _state(int(scorable_P[p]), bool(dead_P[p]), preset),
        )
        for p, group in enumerate(members)
    ]


def to_train(
    groups: Sequence[Group], dead_groups: DeadGroups, *, mask_truncated: bool = False
) -> tuple[list[TrainGroup], Counter[str]]:
    """Groups for the learner, and how many samples were dropped for which reason.

    Unscorable samples never train; neither do those cut off at the limit with ``mask_truncated`` (DAPO's overlong
    filtering), though their rewards count in their group's mean. Dead groups are dropped whole, or train with the
    advantages that they have (0 under the guard): for their KL term, and as part of the loss's denominators.
    """
    kept: list[TrainGroup] = []
    dropped: Counter[str] = Counter()
    for group in groups:
        scorable = [i for i, s in enumerate(group.samples) if not math.isnan(s.verdict.reward)]
        dropped["unscorable"] += len(group.samples) - len(scorable)
        if group.state == "unscorable" or (group.dead and dead_groups in ("drop", "resample")):
            dropped[group.state] += len(scorable)
            continue
        whole = [i for i in scorable if not (mask_truncated and group.samples[i].trajectory.truncated)]
        dropped["truncated"] += len(scorable) - len(whole)
        if whole:
            samples = tuple(_train_sample(group.samples[i], group.advantages[i]) for i in whole)
            prompt = group.samples[0].trajectory.prompt_ids
            kept.append(TrainGroup(prompt, samples, sum(sum(s.mask) for s in samples), group.dead))
    return kept, +dropped


def denominators_of(groups: Sequence[TrainGroup], max_length: int) -> Denominators:
    """Counts over the whole optimiser minibatch."""
    return Denominators(
        sequences=sum(len(g.samples) for g in groups),
        tokens=sum(g.group_loss_tokens for g in groups),
        prompts=len(groups),
        max_length=max_length,
    )


def _state(scorable: int, dead: bool, preset: Preset) -> GroupState:
    needed = 2 if preset.estimate == "group" else 1
    if scorable < needed:
        return "unscorable"
    return "zero_variance" if dead and preset.estimate == "group" else "informative"


def _advantages(rewards_PG: Tensor, preset: Preset) -> Tensor:
    if preset.estimate != "group":
        return torch.full_like(rewards_PG, torch.nan)
    estimator = ADVANTAGES[preset.advantage]
    settings = {"guard": preset.guard, "eps": preset.advantage_eps, "ddof": preset.ddof}
    taken = signature(estimator).parameters
    return estimator(rewards_PG, **{name: value for name, value in settings.items() if name in taken})


def _train_sample(sample: Sample, advantage: float) -> TrainSample:
    t = sample.trajectory
    # Where tokens are judged and not completions, what is to be spread over them is the reward.
    value = sample.verdict.reward if math.isnan(advantage) else advantage
    return TrainSample(t.completion_ids, t.action_mask, value, t.logprobs)
