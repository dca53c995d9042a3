"""Held-out evaluation: shares correct with 95 % intervals, sampled and greedy."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from assay.core.estimators import mean_interval, wilson_interval
from assay.rollout.engine import Engine
from assay.train.collect import Decode, Verify, collect
from assay.types import Request, Row, Sample

EVALUATION_STREAM = 2**63
"""Added to the run's seed, so that evaluation never shares random numbers with training."""


def evaluate(
    engine: Engine,
    rows: Sequence[Row],
    prompts: Sequence[tuple[int, ...]],
    decode: Decode,
    verify: Verify,
    *,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    on_progress: Callable[[int, int], None],
    grade: Callable[[Sequence[Sample]], list[Sample]] = list,
) -> dict[str, Any]:
    """One sampled and one greedy completion of every row, as {"sampled": …, "greedy": …}.

    Both are asked for at once, so that each prompt is computed once. ``grade`` may change the verdicts.
    """
    requests = [
        Request(2 * i + greedy, i, prompt, max_new_tokens, 0.0 if greedy else temperature, seed + EVALUATION_STREAM)
        for i, prompt in enumerate(prompts)
        for greedy in (0, 1)
    ]
    asked = [row for row in rows for _ in (0, 1)]
    samples = grade(collect(engine, requests, asked, decode, verify, on_progress))
    return {"sampled": summarise(samples[0::2]), "greedy": summarise(samples[1::2])}


def summarise(samples: Sequence[Sample]) -> dict[str, Any]:
    """Plain numbers of one completion a prompt; unscorable ones are left out and counted. None: of nothing."""
    scorable = [s for s in samples if not math.isnan(s.verdict.reward)]
    n = len(scorable)
    share = sum(s.verdict.correct for s in scorable) / n if n else None
    # JSON has no NaN.
    mean, low, high = mean_interval([s.verdict.reward for s in scorable]) if n else (None, None, None)
    components: dict[str, list[float]] = defaultdict(list)
    for sample in scorable:
        for name, value in sample.verdict.components.items():
            components[name].append(value)
    lengths = [len(s.trajectory.completion_ids) for s in samples]
    return {
        "n": n,
        "unscorable": len(samples) - n,
        "pass_at": {"1": share},
        "pass_at_interval": {"1": list(wilson_interval(share or 0.0, n))},
        "mean_reward": mean,
        "mean_reward_interval": [low, high],
        "length_mean": sum(lengths) / len(lengths),
        "truncation_rate": sum(s.trajectory.finish_reason == "length" for s in samples) / len(samples),
        "components": {name: math.fsum(values) / len(values) for name, values in components.items()},
    }
