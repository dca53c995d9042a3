"""What a recipe adds to the verifiers' rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from assay.core.overlong import overlong_penalty
from assay.types import Sample


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
