"""Evaluating any model on any rows: pass@k and maj@k over several completions of each prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.core.estimators import majority_is_correct, mean_interval, pass_at_k, wilson_interval
from assay.errors import DataError
from assay.models.policy import load_policy, pick_device
from assay.rollout.engine import Engine
from assay.rollout.paged import PagedEngine
from assay.train.collect import Decode, Verify, collect
from assay.train.job import Prompts, encode_prompts, load_checked_rows
from assay.types import Request, Sample
from assay.verifiers.composition import Composite, Part
from assay.verifiers.registry import build_verifier


def benchmark(
    *,
    model: str,
    data: str,
    verifier: str,
    args: Mapping[str, Any],
    prompts: int | None,
    samples: int,
    ks: Sequence[int],
    max_new_tokens: int,
    temperature: float,
    seed: int,
    on_progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Plain numbers: n prompts, pass_at and maj_at by k, mean_reward, each with its interval over prompts.

    maj@k is the majority of the first k completions' texts. Unscorable completions are counted, and a prompt
    with any is left out of pass@k and maj@k.
    """
    verify = Composite([Part(verifier, build_verifier(verifier, args))])
    rows = load_checked_rows(data, verify, prompts)
    policy = load_policy(model, precision="float32", device=pick_device())
    asked = encode_prompts(rows, policy, max_new_tokens)
    engine = PagedEngine(policy)
    return summarise(
        answer(
            engine,
            asked,
            policy.decode,
            verify,
            samples=samples,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            on_progress=on_progress,
        ),
        ks,
    )


def answer(
    engine: Engine,
    asked: Prompts,
    decode: Decode,
    verify: Verify,
    *,
    samples: int,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    on_progress: Callable[[int, int], None],
) -> list[list[Sample]]:
    """``samples`` graded completions of each prompt, prompts in order."""
    requests = [
        Request(i * samples + s, i, prompt, max_new_tokens, temperature, seed)
        for i, prompt in enumerate(asked.ids)
        for s in range(samples)
    ]
    rows = [row for row in asked.rows for _ in range(samples)]
    answered = collect(engine, requests, rows, decode, verify, on_progress)
    return [answered[i : i + samples] for i in range(0, len(answered), samples)]


def summarise(by_prompt: Sequence[Sequence[Sample]], ks: Sequence[int]) -> dict[str, Any]:
    """Numbers over prompts, each with its completions. Raises DataError if no prompt could be scored."""
    scorable = [group for group in by_prompt if not any(math.isnan(s.verdict.reward) for s in group)]
    if not scorable:
        raise DataError(f"none of the {len(by_prompt)} prompts could be scored: {by_prompt[0][0].verdict.reason}")
    result: dict[str, Any] = {
        "n": len(scorable),
        "samples": len(by_prompt[0]),
        "unscorable_prompts": len(by_prompt) - len(scorable),
        **{name: {} for name in ("pass_at", "pass_at_interval", "maj_at", "maj_at_interval")},
    }
    for k in ks:
        passed = [pass_at_k(len(g), sum(s.verdict.correct for s in g), k) for g in scorable]
        majority = [
            majority_is_correct([s.text.strip() for s in g[:k]], [s.verdict.correct for s in g[:k]]) for g in scorable
        ]
        for name, values in (("pass_at", passed), ("maj_at", majority)):
            share = math.fsum(values) / len(values)
            result[name][str(k)] = share
            result[f"{name}_interval"][str(k)] = list(wilson_interval(share, len(values)))
    mean, low, high = mean_interval([math.fsum(s.verdict.reward for s in g) / len(g) for g in scorable])
    return {**result, "mean_reward": mean, "mean_reward_interval": [low, high]}
