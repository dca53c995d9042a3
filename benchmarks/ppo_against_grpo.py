"""PPO and GRPO side by side on the same task: reward per sample, per second, and memory.

    python benchmarks/ppo_against_grpo.py         # needs runs/addition-warm, which `make tiny` makes

First the tiny recipe, 100 steps of 256 completions each, one process after the other: the share right over the
last 2,560 completions and the seconds spent, after every 25 steps. Then three steps of the quickstart's model and
task with a reference (beta 0.01): the bytes of the model state (weights, gradients and optimiser of actor and
critic, and the reference), and the process's peak memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor

from assay.config import Config, load_config
from assay.train import rl
from assay.train.assembly import Job, build
from assay.train.loop import run

ROOT = Path(__file__).parent.parent
ADDITION = {name: ROOT / "recipes" / f"addition-tiny-{name}.toml" for name in ("grpo", "ppo")}
ORDERS = ROOT / "recipes" / "json-smollm2-grpo.toml"
LARGE = ["train.steps=3", "data.eval_rows=1", "algorithm.beta=0.01", "train.micro_batch_tokens=1024"]


def main() -> None:
    """Each run in a process of its own, so that peak memory is its own."""
    with tempfile.TemporaryDirectory() as folder:
        print("| addition, 3 M parameters | completions | seconds | right |\n|---|---|---|---|")
        for name, recipe in ADDITION.items():
            seen = measured(recipe, name, Path(folder) / f"small-{name}", [])
            print("\n".join(seen["pace"]), flush=True)
        print("\n| orders, SmolLM2-135M | model state | peak memory | seconds a step |\n|---|---|---|---|")
        for name in ADDITION:
            seen = measured(ORDERS, name, Path(folder) / f"large-{name}", LARGE)
            peak, state = seen["peak"] / 1e9, seen["state"] / 1e9
            print(f"| {name} | {state:.2f} GB | {peak:.2f} GB | {seen['seconds']:.1f} |", flush=True)


def measured(recipe: Path, name: str, out: Path, overrides: list[str]) -> dict[str, Any]:
    """What ``child`` prints, and the peak memory of its process in bytes."""
    command = [sys.executable, __file__, str(recipe), name, str(out), *overrides]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    return {**json.loads(printed.splitlines()[-1]), "peak": usage.ru_maxrss * 1024}  # Linux counts in KiB


def child(recipe: Path, name: str, out: Path, overrides: list[str]) -> None:
    """Train, and print as JSON what was seen."""
    config = load_config(recipe, overrides)
    # PPO has no dead groups, and refuses to be told what to do with them.
    algorithm = config.algorithm.model_copy(update={"preset": name, "dead_groups": None})
    config = config.model_copy(update={"algorithm": algorithm})
    job = build(config)
    out.mkdir()
    metrics = run(job, name, out, rl.IMPROVE[name]).metrics
    seconds = sum(r["seconds"] for r in metrics) / len(metrics)
    print(json.dumps({"pace": pace(name, config, metrics), "state": state_bytes(job), "seconds": seconds}))


def pace(name: str, config: Config, metrics: list[dict[str, Any]]) -> list[str]:
    """Rows of the first table."""
    rows = []
    for last in range(25, config.train.steps + 1, 25):
        right = sum(r["correct_rate"] for r in metrics[last - 10 : last]) / 10
        seconds = sum(r["seconds"] for r in metrics[:last])
        rows.append(f"| {name} | {metrics[last - 1]['samples_total']} | {seconds:.0f} | {right:.1%} |")
    return rows


def state_bytes(job: Job) -> int:
    """Weights of all models; gradients (as large as what trains) and moments of those that train."""
    policy = job.policy.module
    total = bytes_of(policy.parameters()) + bytes_of(job.policy.trainable().values())
    total += bytes_of(moments(job.learner.state()))
    if job.critic is not None:
        state = job.critic.state()
        weights = [t for name, t in state.items() if name.startswith("weight/")]
        total += 2 * bytes_of(weights) + bytes_of(moments(state))
    if job.reference is not None and not job.policy.is_lora:
        total += bytes_of(policy.parameters())
    return total


def moments(state: dict[str, Tensor]) -> list[Tensor]:
    """AdamW's two."""
    return [t for name, t in state.items() if name.startswith(("exp_avg/", "exp_avg_sq/"))]


def bytes_of(tensors: Any) -> int:
    """What tensors take."""
    return sum(t.numel() * t.element_size() for t in tensors)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
    else:
        main()
