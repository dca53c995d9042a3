"""Orders: what the splits must not share, and that every text holds its answer."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from assay.data.orders import DEFAULT_ROWS, HELDOUT, SIDES, TRAIN, Side, orders, schema
from assay.types import Row

LEVELS = ("flat", "lines")
SPLITS = ("train", "heldout")


def text_of(row: Row) -> str:
    message = row.prompt[-1]
    assert not isinstance(message, str)
    return message["content"]


def words_of(side: Side) -> set[str]:
    return {*side.first_names, *side.last_names, *side.cities, *side.items}


def phrasings_of(side: Side) -> list[str]:
    return [*side.phrasings, *(text for text, _ in side.line_phrasings)]


def as_pattern(phrasing: str) -> re.Pattern[str]:
    """A regular expression that every text of the phrasing matches."""
    return re.compile(re.sub(r"\\\{\w+\\\}", "(.+)", re.escape(phrasing)))


def test_there_is_enough_variety_on_either_side() -> None:
    for side, cities, items, phrasings in ((TRAIN, 15, 20, 8), (HELDOUT, 15, 15, 6)):
        assert len(set(side.first_names)) >= 20
        assert len(set(side.last_names)) >= 20
        assert len(set(side.cities)) >= cities
        assert len(set(side.items)) >= items
        assert len(set(side.phrasings)) >= phrasings
        assert all(not item.endswith(("s", "x", "y", "ch", "sh")) for item in side.items), "the plural is a plain -s"


@pytest.mark.parametrize("level", LEVELS)
def test_no_held_out_word_or_phrasing_is_in_any_training_prompt(level: str) -> None:
    rows = orders(split="train", level=level)
    prompts = {m["content"] for row in rows for m in row.prompt if not isinstance(m, str)}
    everything = "\n".join(prompts).lower()
    assert not [word for word in words_of(HELDOUT) if word.lower() in everything]
    patterns = [as_pattern(phrasing) for phrasing in phrasings_of(HELDOUT)]
    assert not [text_of(row) for row in rows if any(p.fullmatch(text_of(row)) for p in patterns)]


def test_the_sides_share_no_part_of_a_name_either() -> None:
    parts = [{part.lower() for word in words_of(side) for part in word.split()} for side in (TRAIN, HELDOUT)]
    assert not parts[0] & parts[1]


@pytest.mark.parametrize("level", LEVELS)
def test_no_training_word_or_phrasing_is_in_any_held_out_text(level: str) -> None:
    texts = [text_of(row) for row in orders(split="heldout", level=level)]
    for word in words_of(TRAIN):
        assert not [text for text in texts if word.lower() in text.lower()], word
    patterns = [as_pattern(phrasing) for phrasing in phrasings_of(TRAIN)]
    assert not [text for text in texts if any(p.fullmatch(text) for p in patterns)]


@pytest.mark.parametrize("split", SPLITS)
def test_every_word_and_phrasing_is_used(split: str) -> None:
    side = {"train": TRAIN, "heldout": HELDOUT}[split]
    texts = [text_of(row) for row in orders(split=split, rows=2000)]
    assert all(any(word in text for text in texts) for word in words_of(side))
    assert all(any(as_pattern(p).fullmatch(text) for text in texts) for p in side.phrasings)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("level", LEVELS)
def test_the_answer_fits_its_schema_and_every_value_is_in_the_text(split: str, level: str) -> None:
    for row in orders(split=split, level=level, rows=300):
        jsonschema.validate(row.answer, row.columns["schema"])
        text = text_of(row)
        assert row.answer["customer"] in text
        assert row.answer["city"] in text
        for line in row.answer.get("lines", [row.answer]):
            assert line["item"] in text
            numbers = re.findall(r"\d+", text)
            assert str(line["quantity"]) in numbers
            assert str(line["price"]) in numbers
        if level == "lines":
            assert 2 <= len(row.answer["lines"]) <= 3
            assert row.answer["total"] == sum(line["quantity"] * line["price"] for line in row.answer["lines"])


@pytest.mark.parametrize("level", LEVELS)
def test_all_prompts_share_the_same_examples_which_are_valid_and_from_the_training_side(level: str) -> None:
    rows = [*orders(split="train", level=level, rows=50), *orders(split="heldout", level=level, rows=50)]
    starts = {json.dumps([dict(m) for m in row.prompt[:-1] if not isinstance(m, str)]) for row in rows}
    assert len(starts) == 1
    start = json.loads(starts.pop())
    assert [m["role"] for m in start] == ["system", "user", "assistant", "user", "assistant"]
    for message in start[2::2]:
        answer = json.loads(message["content"])
        jsonschema.validate(answer, schema(level))
        assert answer["city"] in TRAIN.cities
    for key in schema(level)["required"]:
        assert key in start[0]["content"]


def test_the_schema_refuses_what_is_missing_extra_or_of_another_type() -> None:
    answer = orders(split="train", rows=1)[0].answer
    assert list(answer) == ["customer", "city", "item", "quantity", "price"]
    wrong = [{**answer, "x": 1}, {**answer, "quantity": "2"}, {**answer, "quantity": 0}, {**answer, "item": 1}]
    wrong += [{k: v for k, v in answer.items() if k != key} for key in answer]
    assert not [w for w in wrong if jsonschema.Draft202012Validator(schema("flat")).is_valid(w)]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("level", LEVELS)
def test_texts_are_distinct_and_a_shorter_data_set_is_a_prefix(split: str, level: str) -> None:
    rows = orders(split=split, level=level)
    assert len(rows) == DEFAULT_ROWS[split]
    assert len({text_of(row) for row in rows}) == len(rows)
    assert len({row.row_id for row in rows}) == len(rows)
    assert orders(split=split, level=level, rows=7) == rows[:7]


def test_a_text_that_is_drawn_twice_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Side(("Ann",), ("Lee",), ("Bonn",), ("cup",), ("{customer} {city} {quantity} {item} {price}",), ())
    monkeypatch.setitem(SIDES, "train", one)
    # 18 quantities and 248 prices are all the texts there are.
    assert len({text_of(row) for row in orders(split="train", rows=4000)}) == 4000


def test_the_rows_are_the_same_on_every_machine() -> None:
    row = orders(split="heldout", rows=1)[0]
    assert text_of(row) == "Purchase by Daniel Keller: 15 pieces of receiver, 187 EUR for one, destination Ann Arbor."
    assert row.answer == {
        "customer": "Daniel Keller",
        "city": "Ann Arbor",
        "item": "receiver",
        "quantity": 15,
        "price": 187,
    }
