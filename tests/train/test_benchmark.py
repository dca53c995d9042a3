"""pass@k and maj@k of any model on any rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.errors import AssayError, DataError, VerifierError
from assay.train.benchmark import benchmark, summarise
from assay.types import Sample

NAN = math.nan


@pytest.fixture
def group(sample: Callable[..., Sample]) -> Callable[..., list[Sample]]:
    """Completions of one prompt as (text, reward)."""

    def make(*completions: tuple[str, float]) -> list[Sample]:
        return [sample(i, 0, reward, text=text) for i, (text, reward) in enumerate(completions)]

    return make


def test_pass_and_majority_by_hand(group: Callable[..., list[Sample]]) -> None:
    prompts = [
        group(("a", 1), ("b", 0), (" a ", 1), ("c", 0)),  # 2 of 4 right, and the majority is
        group(("x", 0), ("x", 0), ("y", 1), ("z", 0)),  # 1 of 4 right, and the majority is not
    ]
    result = summarise(prompts, [1, 2, 4])
    # 1 - C(wrong, k) / C(4, k), for k = 2: 1 - 1/6 and 1 - 3/6
    assert result["pass_at"] == pytest.approx({"1": (1 / 2 + 1 / 4) / 2, "2": (5 / 6 + 1 / 2) / 2, "4": 1.0})
    # first 1: right, wrong; first 2: a tie counts half, wrong; all 4: right, wrong
    assert result["maj_at"] == pytest.approx({"1": 0.5, "2": 0.25, "4": 0.5})
    assert (result["n"], result["samples"], result["unscorable_prompts"]) == (2, 4, 0)
    assert result["mean_reward"] == pytest.approx((1 / 2 + 1 / 4) / 2)
    for name in ("pass_at", "maj_at"):
        for k, share in result[name].items():
            low, high = result[f"{name}_interval"][k]
            assert 0 <= low <= share <= high <= 1


def test_a_prompt_with_an_unscorable_completion_is_left_out_and_counted(group: Callable[..., list[Sample]]) -> None:
    result = summarise([group(("a", 1), ("b", NAN)), group(("a", 1), ("b", 1)), group(("a", 0), ("b", 0))], [1])
    assert (result["n"], result["unscorable_prompts"]) == (2, 1)
    assert result["pass_at"] == {"1": 0.5}


def test_nothing_scorable_is_an_error(group: Callable[..., list[Sample]]) -> None:
    with pytest.raises(DataError, match="none of the 1 prompts could be scored"):
        summarise([group(("a", NAN))], [1])


def run(model: Path, **given: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "model": str(model),
        "data": "builtin:addition?split=heldout&rows=6",
        "verifier": "exact",
        "args": {},
        "prompts": None,
        "samples": 2,
        "ks": [1, 2],
        "max_new_tokens": 4,
        "temperature": 1.0,
        "seed": 0,
        "on_progress": lambda *_: None,
    }
    return benchmark(**{**settings, **given})


def test_a_model_on_rows(model_folder: Callable[..., Path]) -> None:
    seen: list[tuple[int, int]] = []
    result = run(model_folder("llama"), prompts=4, on_progress=lambda *at: seen.append(at))
    assert (result["n"], result["samples"]) == (4, 2)
    assert set(result["pass_at"]) == set(result["maj_at"]) == {"1", "2"}
    assert seen[-1] == (8, 8)
    assert run(model_folder("llama"), prompts=4) == result


def test_what_cannot_be_answered_is_refused_as_wrong_usage(model_folder: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="the model's context has 64") as caught:
        run(model_folder("llama"), max_new_tokens=60)
    assert caught.value.exit_code == 2
    with pytest.raises(VerifierError, match="no verifier 'exakt'"):
        run(model_folder("llama"), verifier="exakt")
    with pytest.raises(AssayError, match="there is no file"):
        run(model_folder("llama"), data="none.jsonl")
