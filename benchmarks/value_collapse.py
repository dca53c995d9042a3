"""What the critic of PPO knows when one reward comes late: the same task with completions of growing length.

    python benchmarks/value_collapse.py

The first character decides: a completion earns 1 if it begins with a letter from a to m. All that can be known is
known after one token, and the reward comes at the end of the L letters that follow. A tiny model first learns to
write random letters; from there PPO and GRPO get the same number of completions a step. Printed for each length:
the share that earned 1 over the first and the last five steps, the step at which nine in ten did, and how much of
the variance of what was earned PPO's critic knew, over all tokens and over the first half of each completion
(means over all steps after the fifth).
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from assay import train
from assay.config import parse_config
from assay.train import sft

LENGTHS = (4, 12, 24, 48)
LONGEST = 56
STEPS = 40
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": {"preset": "grpo"}},
    "ppo, lambda 0.95": {"algorithm": {"preset": "ppo"}, "critic": {"learning_rate": 3e-4}},
    "ppo, lambda 1": {"algorithm": {"preset": "ppo"}, "critic": {"learning_rate": 3e-4, "lam": 1.0}},
}


def early_letter(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """1 where the first character is a letter from a to m."""
    return [float(text[:1] in {*"abcdefghijklm"}) for text in completions]


def main() -> None:
    """A model that writes letters, then one run of each algorithm for each length, and a line for each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = writer_of_letters(folder)
        print("| length | algorithm | earned, first | last | nine in ten at step | explained variance | early |")
        print("|---|---|---|---|---|---|---|")
        for length in LENGTHS:
            for algorithm, tables in ALGORITHMS.items():
                config = parse_config(recipe(folder, start, length, tables), algorithm)
                run = train(config, out=folder / f"{length} {algorithm}")
                print(line(length, algorithm, run.metrics), flush=True)


def writer_of_letters(folder: Path) -> Path:
    """A model that writes LONGEST letters, each drawn evenly."""
    draw = random.Random(0)
    rows = [
        {"prompt": f"{i}:", "answer": "", "response": "".join(draw.choices(LETTERS, k=LONGEST))}
        for i in range(10, 100)
        for _ in range(60)
    ]
    (folder / "letters.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables = {"sft": {"rows_per_step": 32}, "train": {"steps": 120, "checkpoint_every": 120, "memory_gb": 6}}
    tree = recipe(folder, Path("tiny-char"), LONGEST, {**tables, "optimizer": {"learning_rate": 1e-3}})
    return sft.train(parse_config(tree, "letters"), folder / "letters").model


def recipe(folder: Path, model: Path, length: int, tables: dict[str, Any]) -> dict[str, Any]:
    """What all runs have in common, and ``tables``."""
    return {
        "name": "value-collapse",
        "model": {"name": str(model)},
        "data": {"train": str(folder / "letters.jsonl")},
        "rollout": {"prompts_per_step": 16, "max_new_tokens": length, "max_running": 256},
        "verifiers": [{"name": "value_collapse:early_letter"}],
        "optimizer": {"learning_rate": 1e-4},
        "train": {"steps": STEPS, "checkpoint_every": STEPS, "memory_gb": 6},
        **tables,
    }


def line(length: int, name: str, records: list[dict[str, Any]]) -> str:
    """One row of the table."""
    earned = [r["reward_mean"] for r in records]
    reached = next((str(r["step"]) for r in records if r["reward_mean"] >= 0.9), f"not in {STEPS}")
    cells = [f"{sum(part) / 5:.1%}" for part in (earned[:5], earned[-5:])] + [reached]
    for key in ("explained_variance", "explained_variance_early"):
        values = [r[key] for r in records[5:] if r.get(key) is not None]
        cells.append(f"{sum(values) / len(values):.2f}" if values else "–")
    return f"| {length} | {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
