"""assay dpo: from a run's completions to a run on their pairs, and rows that are refused before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.train.run import load_run

Assay = Callable[..., Any]
GOOD = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}


def test_train_pairs_dpo_and_its_extension(recipe: Path, folder: Path, assay: Assay) -> None:
    assert assay("train", recipe, "--out", "grpo", "--set", "rollout.max_new_tokens=12").code == 0
    assert assay("pairs", "grpo", "--out", "pairs.jsonl").code == 0
    ended = assay("dpo", recipe, "--steps", "1", "--set", "data.train=pairs.jsonl", "--set", "dpo.pairs_per_step=2")
    assert (ended.code, ended.stderr) == (0, "")
    for part in ("tiny: DPO on ", "step 1/1  loss 0.6931  pairs right   0%", "held-out, before:", "held-out, after:"):
        assert part in ended.stdout
    run = load_run("runs/tiny")
    assert run.config.dpo.pairs_per_step == 2
    assert assay("dpo", "--resume", "runs/tiny", "--steps", "3").code == 0
    assert [m["step"] for m in run.metrics] == [1, 2, 3]

    refused = assay("dpo", "--resume", "runs/tiny", "--steps", "4", "--set", "dpo.beta=0.2")
    assert (refused.code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("assay: dpo.beta cannot change in a run that goes on")
    other = assay("train", "--resume", "runs/tiny", "--steps", "4")
    assert (other.code, other.stderr) == (2, "assay: runs/tiny is a run of `assay dpo`; resume it with that command\n")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "1+1=", "chosen": "2"}, "row pairs.jsonl:2 has no 'rejected'; preference rows need prompt, chosen"),
        ({**GOOD, "chosen": 2}, "row pairs.jsonl:2: 'chosen' must be text"),
        ({**GOOD, "rejected": "2"}, "row pairs.jsonl:2: chosen and rejected are the same 2 tokens"),
        ({**GOOD, "chosen": "2" * 70}, "row pairs.jsonl:2: the prompt has 4 tokens, chosen 71 and rejected 2"),
        ({**GOOD, "prompt": ""}, "line 2: the prompt is empty"),
        (
            {**GOOD, "prompt": [{"role": "user", "content": "1+1="}]},
            "the prompts are chat messages, but this model's tokenizer has no chat template",
        ),
    ],
)
def test_a_bad_row_is_refused_and_leaves_nothing(
    row: dict[str, Any], says: str, recipe: Path, folder: Path, assay: Assay
) -> None:
    Path("pairs.jsonl").write_text("".join(json.dumps(r) + "\n" for r in (GOOD, row)))
    ended = assay("dpo", recipe, "--set", "data.train=pairs.jsonl", "--set", "verifiers.0.name=exact")
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("assay: ")
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("data.train=none.jsonl", "there is no file"),
        ("data.eval=pairs.jsonl", "line 1 has no 'answer'"),
        ("dpo.beta=0", "dpo.beta: got 0; input should be greater than 0"),
        ("dpo.betta=1", "dpo.betta: unknown key (did you mean 'beta'?); allowed: beta, pairs_per_step"),
        ("data.train=builtin:addition?split=train", "row addition/train/0 has no 'chosen'"),
    ],
)
def test_a_bad_recipe_is_refused_and_leaves_nothing(
    change: str, says: str, recipe: Path, folder: Path, assay: Assay
) -> None:
    Path("pairs.jsonl").write_text(json.dumps(GOOD))
    changes = [part for c in ("verifiers.0.name=exact", "data.train=pairs.jsonl", change) for part in ("--set", c)]
    ended = assay("dpo", recipe, *changes)
    assert (ended.code, ended.stdout) == (2, "")
    assert says in ended.stderr
    assert not Path("runs").exists()
