"""Rejection sampling: several completions of each prompt, of which the correct ones become rows to learn from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from assay.config import Config
from assay.errors import ConfigError, VerifierError
from assay.telemetry.progress import Progress
from assay.telemetry.store import write_atomic
from assay.train.benchmark import answer
from assay.train.interrupt import StopRequest
from assay.train.job import build_composite, build_engine, build_policy, encode_prompts, load_checked_rows
from assay.types import Sample

SAMPLING_STREAM = 2**61
"""Added to the run's seed, so that these samples share no random numbers with training."""

Keep = Literal["correct", "all"]


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was sampled and kept."""

    prompts: int
    completions: int
    correct: int
    solved: int
    """Prompts with a correct completion."""
    kept: int

    def __str__(self) -> str:
        return (
            f"{self.correct} of {self.completions} completions correct ({self.correct / self.completions:.1%}); "
            f"{self.solved} of {self.prompts} prompts solved; {self.kept} rows kept"
        )


def sample(
    config: Config, out: Path, *, samples: int, per_prompt: int, keep: Keep = "correct", prompts: int | None = None
) -> Sampled:
    """Sample ``samples`` completions of each training prompt and write the rows that are kept to ``out``.

    Raises ConfigError, before a model is loaded, for an ``out`` that exists, is no .jsonl or has no folder, and
    VerifierError, with nothing written, if nothing is kept.
    """
    _check_out(out)
    verify = build_composite(config)
    rows = load_checked_rows(config.data.train, verify, prompts)
    policy = build_policy(config)
    asked = encode_prompts(rows, policy, config.rollout.max_new_tokens)
    engine = build_engine(config, policy, asked)
    with StopRequest() as stop, Progress(1) as progress:

        def show(done: int, total: int) -> None:
            stop.check()
            progress.phase("sampling", done, total)

        groups = answer(
            engine,
            asked,
            policy.decode,
            verify,
            samples=samples,
            max_new_tokens=config.rollout.max_new_tokens,
            temperature=config.rollout.temperature,
            seed=config.seed + SAMPLING_STREAM,
            on_progress=show,
        )
    kept = [row for group in groups for row in kept_rows(group, per_prompt, keep)]
    correct = [sum(s.verdict.correct for s in group) for group in groups]
    if not kept:
        raise VerifierError(
            f"none of the {len(rows) * samples} completions is correct, so there is nothing to keep; the first: "
            f"{groups[0][0].verdict.reason or 'no reason given'}"
        )
    lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in kept)
    write_atomic(out, lines.encode("utf-8"))
    return Sampled(len(rows), len(rows) * samples, sum(correct), sum(c > 0 for c in correct), len(kept))


def kept_rows(group: Sequence[Sample], per_prompt: int, keep: Keep) -> list[dict[str, Any]]:
    """One row for each of the first ``per_prompt`` different texts of the group that ended and may be kept.

    The row's own columns stay; ``response`` is the completion. A completion that was cut off has no end to learn,
    and one that is no valid text cannot be stored.
    """
    texts: list[str] = []
    for s in group:
        fit = not s.trajectory.truncated and (keep == "all" or s.verdict.correct)
        if fit and s.text not in texts and _is_text(s.text):
            texts.append(s.text)
    row = group[0].row
    prompt = row.prompt if isinstance(row.prompt, str) else [dict(message) for message in row.prompt]
    return [{"prompt": prompt, "answer": row.answer, **row.columns, "response": text} for text in texts[:per_prompt]]


def _is_text(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _check_out(out: Path) -> None:
    if out.suffix != ".jsonl":
        raise ConfigError(f"--out {out}: the rows are JSON Lines, so the name must end in .jsonl")
    if out.exists():
        raise ConfigError(f"--out {out} exists; choose another name, or delete it")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.absolute().parent}; make it first")
