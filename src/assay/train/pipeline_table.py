"""What a pipeline measured, as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.core.estimators import sign_flip_p_value
from assay.telemetry.progress import duration
from assay.train.stages import START

HEADER = ("stage", "pass@1", "95 % interval", "change", "p", "pass@k", "form", "thinking", "time")


def table(stages: Sequence[str], measured: Mapping[str, Any]) -> str:
    """One line a stage: held-out pass@1 and its change with the paired p, pass@k, form, thinking tokens, time.

    ``measured`` is pipeline.json. The change is against the stage measured before; p: sign flips over problems.
    """
    lines = [HEADER, *_lines(stages, measured)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def _lines(stages: Sequence[str], measured: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    before: Mapping[str, Any] | None = None
    for name in (START, *stages):
        result = measured["evaluations"].get(name)
        seconds = measured["seconds"].get(name)
        spent = duration(seconds) if seconds is not None else ""
        if result is None:
            if seconds is not None:
                yield (name, *[""] * (len(HEADER) - 2), spent)
            continue
        yield (name, *_measured(result, before), spent)
        before = result


def _measured(result: Mapping[str, Any], before: Mapping[str, Any] | None) -> tuple[str, ...]:
    low, high = result["pass_at_interval"]["1"]
    share, k = result["pass_at"]["1"], max(result["pass_at"], key=int)
    change, p = "", ""
    if before is not None and len(before["correct"]) == len(result["correct"]):
        change = f"{100 * (share - before['pass_at']['1']):+.1f}"
        value = sign_flip_p_value([b - a for a, b in zip(before["correct"], result["correct"], strict=True)])
        p = f"{value:.2g}"
    thinking = result["thinking_tokens"]
    return (
        f"{share:.1%}",
        f"{low:.1%} – {high:.1%}",
        change,
        p,
        f"{result['pass_at'][k]:.1%} (k={k})",
        f"{result['formed_share']:.1%}",
        "–" if thinking is None else f"{thinking:.1f}",
    )
