"""Reward hacking: PPO against a small neural reward model, and against the verifier that the model was taught by.

    python benchmarks/reward_hacking.py           # needs runs/addition-warm, which `make tiny` makes

The reward model is a copy of the warm policy with one output, trained on completions of that policy that the
verifier has labelled right or wrong. It is then frozen, and two runs of PPO start from the same policy: one paid
by the reward model's score, one by the verifier. In both the verifier judges what is right. Printed: how good the
reward model is on fresh completions of the warm policy, and every ten steps the score and the share right.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForSequenceClassification

from assay import train
from assay.config import Config, load_config
from assay.models.reward_model import load_reward_model
from assay.rollout.engine import generate
from assay.train.assembly import build
from assay.types import Request

ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "recipes" / "addition-tiny-reward-model.toml"
RUNS = Path("runs/reward-hacking")
REWARD_MODEL = RUNS / "reward-model"
LABELLED = 2000
FRESH = 1000

Labelled = list[tuple[str, str, bool]]
"""Prompt, completion, right or not."""


def main() -> None:
    """Teach the reward model, then train against it and against the verifier."""
    shutil.rmtree(RUNS, ignore_errors=True)
    RUNS.mkdir(parents=True)
    by_verifier = load_config(RECIPE, ["name=verifier"])
    by_verifier = by_verifier.model_copy(
        update={"reward_model": None, "verifiers": [by_verifier.verifiers[0].model_copy(update={"weight": 1.0})]}
    )
    labelled = completions(by_verifier, LABELLED + FRESH)
    teach(labelled[:LABELLED], by_verifier.model.name)
    report(labelled[LABELLED:])
    runs = {"reward model": train(load_config(RECIPE), out=RUNS / "by-reward-model")}
    runs["verifier"] = train(by_verifier, out=RUNS / "by-verifier")
    print("| paid by | steps | score of the reward model | right (verifier) |\n|---|---|---|---|")
    for name, run in runs.items():
        for start in range(0, len(run.metrics), 10):
            print(line(name, run.metrics[start : start + 10]))
        for when in ("before", "after"):
            print(f"{name}: held-out {when} {run.evaluation[when]['sampled']['pass_at']['1']:.1%} right (sampled)")


def completions(config: Config, count: int) -> Labelled:
    """Completions of the warm policy, as the verifier labels them."""
    job = build(config)
    picked = random.Random(0).choices(range(len(job.prompts.rows)), k=count)
    limit = config.rollout.max_new_tokens
    requests = [Request(i, i, job.prompts.ids[row], limit, 1.0, 99) for i, row in enumerate(picked)]
    answered = {t.sample_id: job.policy.decode(t.completion_ids) for t in generate(job.engine, requests)}
    rows = [job.prompts.rows[row] for row in picked]
    return [(str(row.prompt), answered[i], job.verify(row, answered[i]).correct) for i, row in enumerate(rows)]


def teach(labelled: Labelled, start: str) -> None:
    """Logistic regression of the label on all weights, from the policy's."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(start)
    model = LlamaForSequenceClassification.from_pretrained(start, num_labels=1, dtype=torch.float32)
    model.config.pad_token_id = tokenizer.pad_token_id
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    order = random.Random(1)
    for _ in range(300):
        batch = order.sample(labelled, 64)
        inputs = tokenizer([prompt + text for prompt, text, _ in batch], return_tensors="pt", padding=True)
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, 0]
        labels = torch.tensor([float(right) for *_, right in batch])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(REWARD_MODEL)
    tokenizer.save_pretrained(REWARD_MODEL)


def report(fresh: Labelled) -> None:
    """How often the reward model's sign is the verifier's judgement, on completions it was not taught by."""
    model = load_reward_model(str(REWARD_MODEL), torch.device("cpu"), 64)
    scores = model.score([(prompt, text) for prompt, text, _ in fresh])
    agreeing = sum((score > 0) == right for score, (*_, right) in zip(scores, fresh, strict=True))
    share = sum(right for *_, right in fresh) / len(fresh)
    print(
        f"reward model: agrees with the verifier on {agreeing / len(fresh):.1%} of {len(fresh)} fresh completions, "
        f"of which {share:.1%} are right"
    )


def line(name: str, records: list[dict[str, Any]]) -> str:
    """Ten steps of a run as one row of the table."""
    score = [r["component/reward_model"] for r in records if "component/reward_model" in r]
    right = sum(r["correct_rate"] for r in records) / len(records)
    shown = f"{sum(score) / len(score):.2f}" if score else "–"
    return f"| {name} | {records[0]['step']}–{records[-1]['step']} | {shown} | {right:.1%} |"


if __name__ == "__main__":
    main()
