"""Activations of one gradient of SmolLM2-135M, measured against the planner's estimate.

    python benchmarks/memory.py

Each shape of micro-batch runs in a process of its own: the growth of the resident set from after a first small
update (weights, gradients and optimiser states are there) to its peak. Linux only.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import torch

from assay.core.loss import Denominators
from assay.core.presets import PRESETS
from assay.models.learner import TrainGroup, TrainSample
from assay.models.local_learner import LocalLearner, OptimizerSettings
from assay.models.objective import Objective
from assay.models.packing import packed_length
from assay.models.policy import load_policy
from assay.planner.memory import activation_bytes_per_token, logits_bytes
from assay.train.job import shape_of

SHAPES = {"4 prompts of 200": (4, 200, 40), "8 prompts of 200": (8, 200, 40), "1 of 2000": (1, 2000, 100)}
"""Prompts, their tokens, and the tokens of each one's eight completions."""


def main() -> None:
    """One line a shape."""
    for name in SHAPES:
        subprocess.run([sys.executable, __file__, name], check=True)


def measure(name: str) -> None:
    """Print the positions, the measured growth and the estimate of one shape."""
    policy = load_policy("smollm2-135m", precision="float32", device=torch.device("cpu"))
    settings = OptimizerSettings(learning_rate=1e-6, total_steps=10)
    learner = LocalLearner(policy, Objective(PRESETS["grpo"]), settings, micro_batch_tokens=10**9)
    learner.forward_backward([group(0, 20, 4)], Denominators(8, 32, 1, 4))
    learner.step()
    prompts, prompt_tokens, completion_tokens = SHAPES[name]
    groups = [group(seed, prompt_tokens, completion_tokens) for seed in range(prompts)]
    before, peak, done = resident(), [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            peak[0] = max(peak[0], resident())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    learner.forward_backward(groups, Denominators(8 * prompts, 8 * prompts * completion_tokens, prompts, 100))
    done.set()
    watcher.join()
    tokens = packed_length([g.prompt_ids + s.completion_ids[:-1] for g in groups for s in g.samples])
    estimate = tokens * activation_bytes_per_token(shape_of(policy)) + logits_bytes(shape_of(policy))
    print(f"{name}: {tokens} positions, measured {(peak[0] - before) / 1e9:.2f} GB, estimated {estimate / 1e9:.2f} GB")


def group(seed: int, prompt_tokens: int, completion_tokens: int) -> TrainGroup:
    """Random tokens: completions share nothing but their prompt."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randint(100, 20000, (prompt_tokens + 8 * completion_tokens,), generator=generator).tolist()
    n = completion_tokens
    completions = [tuple(draw[prompt_tokens + i * n : prompt_tokens + (i + 1) * n]) for i in range(8)]
    samples = tuple(TrainSample(ids, (True,) * n, 1.0, (0.0,) * n) for ids in completions)
    return TrainGroup(tuple(draw[:prompt_tokens]), samples, 8 * n)


def resident() -> int:
    """Bytes of this process in memory."""
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        measure(sys.argv[1])
