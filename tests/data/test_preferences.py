"""Preference rows in every form that is accepted, and each fault with the row that it is in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from assay.data.preferences import Preference, load_preferences
from assay.data.sources import load_rows
from assay.errors import DataError
from assay.types import Row

ASK = {"role": "user", "content": "2+2?"}
FOUR, FIVE = ({"role": "assistant", "content": text} for text in ("4", "5"))
GOOD = {"prompt": "2+2=", "chosen": "4", "rejected": "5"}


def write(folder: Path, *rows: Any) -> str:
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def test_text_with_and_without_an_answer(tmp_path: Path) -> None:
    rows = [GOOD, {**GOOD, "answer": "4", "rejected": "", "level": 3}, {**GOOD, "answer": None}]
    assert load_preferences(write(tmp_path, *rows)) == [
        Preference(Row("pairs.jsonl:1", "2+2=", None, {"chosen": "4", "rejected": "5"}), "4", "5"),
        Preference(Row("pairs.jsonl:2", "2+2=", "4", {"chosen": "4", "rejected": "", "level": 3}), "4", ""),
        Preference(Row("pairs.jsonl:3", "2+2=", None, {"chosen": "4", "rejected": "5"}), "4", "5"),
    ]


@pytest.mark.parametrize(("chosen", "rejected"), [([FOUR], [FIVE]), ([ASK, FOUR], [ASK, FIVE]), ("4", [FIVE])])
def test_chat_messages_alone_or_after_the_prompt(chosen: Any, rejected: Any, tmp_path: Path) -> None:
    (pair,) = load_preferences(write(tmp_path, {"prompt": [ASK], "chosen": chosen, "rejected": rejected}))
    assert (pair.row.prompt, pair.chosen, pair.rejected) == ((ASK,), "4", "5")


def test_parquet_is_read_alike(tmp_path: Path) -> None:
    rows = [GOOD, {**GOOD, "answer": "4"}]  # a column that one row lacks is null in it
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "text.parquet")
    chat = [{"prompt": [ASK], "chosen": [ASK, FOUR], "rejected": [FIVE]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(chat), tmp_path / "chat.parquet")
    read = [pair for name in ("text", "chat") for pair in load_preferences(str(tmp_path / f"{name}.parquet"))]
    assert [(pair.row.prompt, pair.chosen, pair.rejected) for pair in read] == [
        *([("2+2=", "4", "5")] * 2),
        ((ASK,), "4", "5"),
    ]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no chosen": (
        {"prompt": "p", "rejected": "5", "gold": 1},
        "row pairs.jsonl:2 has no 'chosen'; preference rows need prompt, chosen and rejected, and it has prompt, "
        "rejected, gold",
    ),
    "no rejected": ({"prompt": "p", "chosen": "4"}, "row pairs.jsonl:2 has no 'rejected'"),
    "no prompt": ({"chosen": "4", "rejected": "5"}, "line 2 has no 'prompt'; its columns: chosen, rejected"),
    "null": ({**GOOD, "chosen": None}, "row pairs.jsonl:2: 'chosen' must be text, or chat messages that end with"),
    "a number": (
        {**GOOD, "rejected": 5},
        "'rejected' must be text, or chat messages that end with the assistant's, got 5",
    ),
    "no messages": ({**GOOD, "chosen": []}, "'chosen' must be text, or chat messages"),
    "the user last": ({**GOOD, "chosen": [FOUR, ASK]}, "'chosen' must be text, or chat messages"),
    "no text in it": ({**GOOD, "chosen": [{"role": "assistant"}]}, "'chosen' must be text, or chat messages"),
    "a list of texts": ({**GOOD, "chosen": ["4"]}, "'chosen' must be text, or chat messages"),
    "another prompt": (
        {"prompt": [ASK], "chosen": [{**ASK, "content": "3+3?"}, FOUR], "rejected": "5"},
        "row pairs.jsonl:2: the 1 messages of 'chosen' before the last are not those of the prompt; leave them out",
    ),
    "a prompt of text before messages": ({**GOOD, "chosen": [ASK, FOUR]}, "are not those of the prompt"),
    "lone surrogate": (
        {**GOOD, "chosen": "a\ud800"},
        "row pairs.jsonl:2: 'chosen' holds a lone surrogate at character 1",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_named(name: str, tmp_path: Path) -> None:
    row, message = BAD[name]
    with pytest.raises(DataError, match=re.escape(message)):
        load_preferences(write(tmp_path, GOOD, row))


def test_built_in_data_has_no_pairs() -> None:
    with pytest.raises(DataError, match="row addition/train/0 has no 'chosen'"):
        load_preferences("builtin:addition?split=train&rows=1")


def test_only_preference_rows_may_lack_an_answer(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1 has no 'answer'"):
        load_rows(write(tmp_path, GOOD))
    path = tmp_path / "list.jsonl"
    path.write_text("[1]")
    with pytest.raises(DataError, match="line 1: expected an object with prompt, got list"):
        load_preferences(str(path))
