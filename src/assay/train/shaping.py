"""What a recipe adds to the verifiers' rewards: a neural reward model's score, and the overlong penalty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from assay.core.overlong import overlong_penalty
from assay.models.reward_model import RewardModel
from assay.types import Sample, Verdict


def with_reward_model(samples: Sequence[Sample], model: RewardModel | None, weight: float) -> list[Sample]:
    """Rewards plus ``weight`` times the model's score, shown as the component ``reward_model``. No model: no score.

    What is correct stays the verifiers' judgement; where no verifier applies it is a score above 0.
    """
    if model is None:
        return list(samples)
    scores = model.score([(s.row.prompt, s.text) for s in samples])
    return [
        replace(sample, verdict=_scored(sample.verdict, score, weight))
        for sample, score in zip(samples, scores, strict=True)
    ]


def _scored(verdict: Verdict, score: float, weight: float) -> Verdict:
    judged = bool(verdict.components)
    if judged and math.isnan(verdict.reward):
        return verdict
    components = {**verdict.components, "reward_model": score}
    if not math.isfinite(score):
        reason = f"the reward model's score is {score}: too long for its context, or its arithmetic overflowed"
        return replace(
            verdict, reward=math.nan, status="unscorable", correct=False, reason=reason, components=components
        )
    if judged:
        return replace(verdict, reward=verdict.reward + weight * score, components=components)
    good = score > 0
    return replace(
        verdict,
        reward=weight * score,
        status="ok" if good else "wrong",
        correct=good,
        reason="",
        components=components,
    )


def with_overlong_penalty(samples: Sequence[Sample], *, max_length: int, buffer: int) -> list[Sample]:
    """Rewards less the soft overlong penalty, which is shown as the component ``overlong``. No buffer: no penalty."""
    if not buffer:
        return list(samples)
    lengths = torch.tensor([len(s.trajectory.completion_ids) for s in samples])
    penalties = overlong_penalty(lengths, max_length=max_length, buffer=buffer).tolist()
    return [_penalised(sample, penalty) for sample, penalty in zip(samples, penalties, strict=True)]


def _penalised(sample: Sample, penalty: float) -> Sample:
    verdict = sample.verdict
    components = {**verdict.components, "overlong": penalty}
    return replace(sample, verdict=replace(verdict, reward=verdict.reward + penalty, components=components))
