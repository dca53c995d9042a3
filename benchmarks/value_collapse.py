"""What the critic of PPO knows when one reward comes late: the same task with completions of growing length.

    python benchmarks/value_collapse.py

The first character decides: a completion earns 1 if it begins with a letter from a to m. All that can be known is
known after one token, and the reward comes at the end of the L letters that follow. A tiny model first learns to
write random letters; half of its completions earn 1.

First table: an actor that stands still, so that the critic learns one thing. How much of the variance of what was
earned it knew, over all tokens and over the first half of each completion: means over the last ten of the steps.
(The first token's value cannot know anything, so 1 - 1/L is the most.) Second table: PPO and GRPO with the same
completions a step. The share that earned 1 over the last five steps, and the step at which nine in ten did.
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

LENGTHS = (4, 16, 48)
LONGEST = 56
STEPS = 30
LETTERS = "abcdefghijklmnopqrstuvwxyz"
LAMBDAS = (0.95, 1.0)
STANDS_STILL = {"optimizer": {"learning_rate": 1e-12}}


def early_letter(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """1 where the first character is a letter from a to m."""
    return [float(text[:1] in {*"abcdefghijklm"}) for text in completions]


def main() -> None:
    """A model that writes letters, then a line for each run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = writer_of_letters(folder)

        def records(length: int, tables: dict[str, Any]) -> list[dict[str, Any]]:
            config = parse_config(recipe(folder, start, length, tables), "value-collapse")
            return train(config, out=Path(tempfile.mkdtemp(dir=folder))).metrics

        print("| length | lambda | explained variance | in the first half |\n|---|---|---|---|")
        for length in LENGTHS:
            for lam in LAMBDAS:
                seen = records(length, {**ppo(lam), **STANDS_STILL})[-10:]
                knows = [mean(seen, key) for key in ("explained_variance", "explained_variance_early")]
                print(f"| {length} | {lam} | {knows[0]:.2f} | {knows[1]:.2f} |", flush=True)
        print("\n| length | algorithm | earned 1, last five steps | nine in ten at step |\n|---|---|---|---|")
        for length in LENGTHS:
            for algorithm in ("grpo", *LAMBDAS):
                tables = {} if algorithm == "grpo" else ppo(float(algorithm))
                seen = records(length, tables)
                reached = next((str(r["step"]) for r in seen if r["reward_mean"] >= 0.9), f"not in {STEPS}")
                called = algorithm if algorithm == "grpo" else f"ppo, lambda {algorithm}"
                print(f"| {length} | {called} | {mean(seen[-5:], 'reward_mean'):.1%} | {reached} |", flush=True)


def ppo(lam: float) -> dict[str, Any]:
    """The tables of a recipe that differ from GRPO's."""
    return {"algorithm": {"preset": "ppo"}, "critic": {"learning_rate": 1e-3, "lam": lam}}


def mean(records: list[dict[str, Any]], key: str) -> float:
    """Over steps."""
    return sum(r[key] for r in records) / len(records)


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
        "optimizer": {"learning_rate": 3e-4},
        "train": {"steps": STEPS, "checkpoint_every": STEPS, "memory_gb": 6},
        **tables,
    }


if __name__ == "__main__":
    main()
