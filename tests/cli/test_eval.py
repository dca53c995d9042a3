"""assay eval: the document's fields, nothing else on stdout, and refusals before a model is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Assay = Callable[..., Any]
DATA = "builtin:addition?split=heldout&rows=5"


@pytest.fixture
def evaluate(folder: Path, model_folder: Callable[..., Path], assay: Assay) -> Assay:
    def call(*args: str, verifier: str = "exact", data: str = DATA, model: str = "") -> Any:
        named = ("--model", model or str(model_folder("llama")), "--data", data, "--verifier", verifier)
        return assay("eval", *named, "--max-new-tokens", "4", *args)

    return call


def test_the_json_document(evaluate: Assay) -> None:
    ended = evaluate("--json", "--samples", "4", "-k", "4,1,1", "--prompts", "3")
    assert (ended.code, ended.stderr) == (0, "")
    document = json.loads(ended.stdout)
    assert document["n"] == 3
    for name in ("pass_at", "maj_at"):
        assert set(document[name]) == set(document[f"{name}_interval"]) == {"1", "4"}
        for k, share in document[name].items():
            low, high = document[f"{name}_interval"][k]
            assert 0 <= low <= share <= high <= 1
    low, high = document["mean_reward_interval"]
    assert low <= document["mean_reward"] <= high


def test_a_reward_function_that_prints_does_not_break_it(evaluate: Assay) -> None:
    ended = evaluate("--json", verifier="cli_rewards:letters")
    assert json.loads(ended.stdout)["n"] == 5
    assert ended.stderr.splitlines() == ["loaded", *["called"] * 5]


def test_it_repeats_and_depends_on_the_seed(evaluate: Assay) -> None:
    args = ("--json", "--samples", "4")
    first, again = (evaluate(*args, verifier="cli_rewards:letters").stdout for _ in range(2))
    assert first == again
    assert evaluate(*args, "--seed", "1", verifier="cli_rewards:letters").stdout != first


def test_the_table_for_people(evaluate: Assay) -> None:
    lines = evaluate("--samples", "2", "-k", "1,2", "--temperature", "0").stdout.splitlines()
    assert lines[0] == "5 prompts × 2 completions"
    assert [line.split()[0] for line in lines[1:]] == ["pass@1", "pass@2", "maj@1", "maj@2", "reward"]
    assert all("95 % interval" in line for line in lines[1:])


@pytest.mark.parametrize(
    ("args", "named", "says"),
    [
        (("-k", "1,x"), {}, "-k needs whole numbers such as 1,8, got '1,x'"),
        (("-k", ""), {}, "-k needs whole numbers"),
        (("-k", "2"), {}, "every k must be between 1 and --samples (1)"),
        (("-k", "0"), {}, "every k must be between 1"),
        (("--args", "{"), {}, "--args is not JSON"),
        ((), {"verifier": "exakt"}, "did you mean 'exact'?"),
        ((), {"data": "none.jsonl"}, "there is no file"),
        ((), {"model": "./none"}, "there is no model folder"),
        (("--max-new-tokens", "64"), {}, "the model's context has 64"),
    ],
)
def test_what_cannot_be_evaluated(args: tuple[str, ...], named: dict[str, str], says: str, evaluate: Assay) -> None:
    ended = evaluate("--json", *args, **named)
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("assay: ")
    assert says in ended.stderr
