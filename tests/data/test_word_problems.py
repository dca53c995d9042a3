"""Word problems: right solutions, splits that share no problem, name or thing, and words that the tokenizer keeps."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from transformers import AutoTokenizer

from assay.data import word_problems as module
from assay.data.sources import load_rows
from assay.data.word_problems import HELDOUT, INSTRUCTION, LARGEST, TRAIN, is_held_out, word_problems
from assay.errors import DataError
from assay.models.policy import resolve_model
from assay.types import Row
from assay.verifiers.exact import exact
from assay.verifiers.repetition import repetition
from assay.verifiers.think_format import Thinking, split_thinking

SPLITS = ("train", "sft", "heldout")
WORDS = re.compile(r"[A-Za-z]+")


def text_of(row: Row) -> str:
    system, user = row.prompt
    assert not isinstance(system, str)
    assert not isinstance(user, str)
    assert (system["role"], system["content"], user["role"]) == ("system", INSTRUCTION, "user")
    return user["content"]


@pytest.mark.parametrize("steps", ["1", "2", "3", "mixed"])
def test_every_worked_solution_is_right_and_leads_to_the_answer(steps: str) -> None:
    for row in word_problems(split="sft", steps=steps, rows=150):
        response = row.columns["response"]
        parts = split_thinking(response)
        assert isinstance(parts, Thinking)
        assert parts.answer == str(row.answer)
        lines = parts.thinking.split("\n")
        assert len(lines) == row.columns["steps"]
        assert steps in ("mixed", str(len(lines)))
        for line in lines:
            match = re.fullmatch(r"[A-Z][a-z]+: (\d+)([-+*/])(\d+)=(\d+)", line)
            assert match is not None, line
            a, sign, b, result = int(match[1]), match[2], int(match[3]), int(match[4])
            assert result == {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign]
            assert 1 <= result <= LARGEST
        assert lines[-1].endswith(f"={row.answer}")
        verdict = exact(after="</think>")(row, response)
        assert verdict is not None
        assert verdict.correct
        shaped = repetition(n=4, allowed=0.2)(row, response)
        assert shaped is not None
        assert shaped.correct


def test_every_number_of_the_solution_that_is_not_a_result_is_in_the_problem() -> None:
    for row in word_problems(split="sft", rows=300):
        told = set(re.findall(r"\d+", text_of(row))) | {"2"}  # half and twice
        known = set(told)
        for a, b, result in re.findall(r"(\d+).(\d+)=(\d+)", row.columns["response"]):
            assert {a, b} <= known
            known.add(result)


def test_only_the_sft_split_tells_the_solution() -> None:
    for split in SPLITS:
        assert [("response" in row.columns) for row in word_problems(split=split, rows=3)] == [split == "sft"] * 3


def test_a_fifth_of_the_problems_is_held_out_by_kind_and_numbers_alone() -> None:
    keys = [f"has {n} | gain {k} | count" for n in range(2, 13) for k in range(2, 100)]
    assert sum(map(is_held_out, keys)) / len(keys) == pytest.approx(0.2, abs=0.04)


def test_no_held_out_problem_name_or_thing_is_in_a_training_split_whatever_the_seed() -> None:
    training = [text_of(r) for seed in (0, 1) for s in ("train", "sft") for r in word_problems(split=s, seed=seed)]
    held_out = [text_of(r) for seed in (0, 1) for r in word_problems(split="heldout", seed=seed)]
    assert not set(training) & set(held_out)
    for side, texts in ((HELDOUT, training), (TRAIN, held_out)):
        said = set(WORDS.findall(" ".join(texts)))
        assert not said & {*side.names, *side.things, *side.holders}

    def numbers_and_form(text: str) -> str:
        words = {*TRAIN.names, *TRAIN.things, *TRAIN.holders, *HELDOUT.names, *HELDOUT.things, *HELDOUT.holders}
        return WORDS.sub(lambda match: "_" if match[0] in words else match[0], text)

    assert not set(map(numbers_and_form, training)) & set(map(numbers_and_form, held_out))


@pytest.mark.parametrize("split", SPLITS)
def test_rows_are_distinct_a_shorter_set_is_a_prefix_and_steps_are_mixed(split: str) -> None:
    rows = word_problems(split=split, rows=400)
    assert len({text_of(row) for row in rows}) == len({row.row_id for row in rows}) == 400
    assert word_problems(split=split, rows=7) == rows[:7]
    assert word_problems(split=split, rows=7, seed=1) != rows[:7]
    counts = Counter(row.columns["steps"] for row in rows)
    assert set(counts) == {1, 2, 3}
    assert min(counts.values()) > 40


@pytest.mark.parametrize("split", SPLITS)
def test_every_word_is_used(split: str) -> None:
    side = HELDOUT if split == "heldout" else TRAIN
    said = set(WORDS.findall(" ".join(text_of(row) for row in word_problems(split=split, rows=1000))))
    assert {*side.names, *side.things, *side.holders} <= said


def test_more_problems_than_there_are_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPENINGS", (module._has,))
    monkeypatch.setattr(module, "QUESTIONS", (module._count,))
    monkeypatch.setattr(module, "EVENTS", (module._double,))
    monkeypatch.setattr(module, "_TRIES", 1000)
    with pytest.raises(DataError, match=r"rows=50 asked for, but split=heldout, steps=1 has about \d distinct"):
        word_problems(split="heldout", steps="1", rows=50)


@pytest.mark.real_model
def test_every_word_is_one_token_of_the_real_model() -> None:
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("smollm2-135m"))
    for side in (TRAIN, HELDOUT):
        for word in (*side.names, *side.things, *side.holders):
            assert len(tokenizer.tokenize(f" {word}")) == 1, word


def test_it_is_a_builtin_with_options() -> None:
    assert load_rows("builtin:word_problems?split=heldout&rows=4&steps=2&seed=3") == word_problems(
        split="heldout", rows=4, steps="2", seed=3
    )
    with pytest.raises(DataError, match="steps='4'"):
        load_rows("builtin:word_problems?split=heldout&steps=4")


def test_the_rows_are_the_same_on_every_machine() -> None:
    row = word_problems(split="sft", rows=1)[0]
    assert text_of(row) == (
        "Lily has 4 packs with 4 stones in each. Lily puts the same number into each of 2 packs. "
        "How many stones are in each?"
    )
    assert row.answer == 8
    assert row.columns == {"steps": 2, "response": "<think>\nEach: 4*4=16\nShared: 16/2=8\n</think>\n8"}
