"""Measuring thinking: shares and lengths by hand, and the same problems and random numbers for every model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.config import Config
from assay.errors import DataError
from assay.train.thinking import measure, thinking_summary, thinking_tokens
from assay.types import Sample

TEXT = {1: "<think>", 2: "a", 3: "</", 4: "think", 5: ">", 6: "7", 7: "\n"}


def decode(ids: tuple[int, ...]) -> str:
    return "".join(TEXT[i] for i in ids)


@pytest.mark.parametrize(
    ("ids", "tokens"),
    [((1, 2, 3, 4, 5, 6), 5), ((1, 2, 2, 3, 4, 5, 7, 6, 6), 6), ((1, 2, 6), 3), ((), 0), ((3, 4, 5), 3)],
)
def test_thinking_ends_with_the_token_that_completes_its_tag(ids: tuple[int, ...], tokens: int) -> None:
    assert thinking_tokens(ids, decode) == tokens


def test_shares_and_lengths_by_hand(sample: Callable[..., Sample]) -> None:
    formed, short, unformed = (1, 2, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6), (2, 2)
    groups: list[list[Sample]] = [
        [sample(0, 0, 1.0, tokens=formed, text=decode(formed)), sample(1, 0, 0.0, tokens=short, text=decode(short))],
        [
            sample(2, 1, 0.0, tokens=unformed, text=decode(unformed), finish="length"),
            sample(3, 1, 0.0, tokens=unformed, text=decode(unformed)),
        ],
    ]
    result = thinking_summary(groups, decode)
    assert result == {
        "correct": [1, 0],
        "formed_share": 0.5,
        "thinking_tokens": 5.5,  # 6 and 5
        "length_mean": (7 + 6 + 2 + 2) / 4,
        "truncation_rate": 0.25,
    }
    nothing = [[replace(s, text="7") for s in group] for group in groups]
    assert thinking_summary(nothing, decode)["thinking_tokens"] is None


def test_a_model_is_measured_on_the_first_held_out_rows(config: Callable[..., Config]) -> None:
    def run(**given: Any) -> dict[str, Any]:
        c = config()
        return measure(c, c.model.name, **{"prompts": 3, "samples": 2, "label": "evaluation", **given})

    result = run()
    assert (result["n"], result["samples"], len(result["correct"])) == (3, 2, 3)
    assert set(result["pass_at"]) == {"1", "2"}
    assert result["pass_at"]["1"] == pytest.approx(sum(result["correct"]) / 6)
    assert result["thinking_tokens"] is None
    assert run() == result
    assert len(run(prompts=2)["correct"]) == 2


def test_without_held_out_rows_there_is_nothing_to_measure(config: Callable[..., Config], tmp_path: Path) -> None:
    c = config()
    blind = c.model_copy(update={"data": c.data.model_copy(update={"eval": None})})
    with pytest.raises(DataError, match="names no held-out rows"):
        measure(blind, c.model.name, prompts=2, samples=2, label="x")
