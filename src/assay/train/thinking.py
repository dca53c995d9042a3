"""Measuring a model that thinks before it answers: pass@1, pass@k, form and thinking length, problem by problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from assay.config import Config
from assay.errors import DataError
from assay.models.policy import load_policy, pick_device
from assay.telemetry.progress import Progress
from assay.train.benchmark import answer, summarise
from assay.train.collect import Decode
from assay.train.evaluate import EVALUATION_STREAM
from assay.train.interrupt import StopRequest
from assay.train.job import build_composite, build_engine, encode_prompts, load_eval_rows
from assay.types import Sample
from assay.verifiers.think_format import CLOSE, Thinking, split_thinking


def measure(config: Config, model: str, *, prompts: int, samples: int, label: str) -> dict[str, Any]:
    """``samples`` completions of each of the recipe's first ``prompts`` held-out rows, by another model than its own.

    The same random numbers for every model, so that two models are compared problem by problem.
    Raises DataError if the recipe names no held-out rows.
    """
    verify = build_composite(config)
    source = config.model_copy(update={"data": config.data.model_copy(update={"eval_rows": prompts})})
    rows = load_eval_rows(source, verify)
    if rows is None:
        raise DataError(f"{config.name} names no held-out rows to measure on; set data.eval")
    policy = load_policy(model, precision=config.model.dtype, device=pick_device())
    asked = encode_prompts(rows, policy, config.rollout.max_new_tokens)
    engine = build_engine(config, policy, asked)
    with StopRequest() as stop, Progress(1) as progress:

        def show(done: int, total: int) -> None:
            stop.check()
            progress.phase(label, done, total)

        groups = answer(
            engine,
            asked,
            policy.decode,
            verify,
            samples=samples,
            max_new_tokens=config.rollout.max_new_tokens,
            temperature=config.rollout.temperature,
            seed=config.seed + EVALUATION_STREAM,
            on_progress=show,
        )
    return {**summarise(groups, sorted({1, samples})), **thinking_summary(groups, policy.decode)}


def thinking_summary(groups: Sequence[Sequence[Sample]], decode: Decode) -> dict[str, Any]:
    """Beyond pass@k: correct completions of each problem, well-formed share, lengths in tokens.

    ``thinking_tokens`` is the mean over well-formed completions, null if there is none.
    """
    samples = [s for group in groups for s in group]
    formed = [s for s in samples if isinstance(split_thinking(s.text), Thinking)]
    lengths = [thinking_tokens(s.trajectory.completion_ids, decode) for s in formed]
    return {
        "correct": [sum(s.verdict.correct for s in group) for group in groups],
        "formed_share": len(formed) / len(samples),
        "thinking_tokens": math.fsum(lengths) / len(lengths) if lengths else None,
        "length_mean": sum(len(s.trajectory.completion_ids) for s in samples) / len(samples),
        "truncation_rate": sum(s.trajectory.truncated for s in samples) / len(samples),
    }


def thinking_tokens(completion_ids: tuple[int, ...], decode: Decode) -> int:
    """Tokens up to the one with which ``</think>`` is complete, tags included; all of them if it never is."""
    low, high = 0, len(completion_ids)
    while low < high:
        middle = (low + high) // 2
        if CLOSE in decode(completion_ids[:middle]):
            high = middle
        else:
            low = middle + 1
    return low
