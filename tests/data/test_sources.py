"""Each kind of source, and each fault of a source with the message that names it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from assay.data.sources import load_rows
from assay.errors import DataError
from assay.types import Row

CHAT = [{"role": "system", "content": ""}, {"role": "user", "content": "2+2?"}]


def write_jsonl(path: Path, *rows: Any) -> str:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def test_jsonl_rows_keep_line_numbers_columns_and_messages(tmp_path: Path) -> None:
    uri = write_jsonl(
        tmp_path / "a.jsonl",
        {"prompt": "1+1=", "answer": "2"},
        "",
        {"prompt": CHAT, "answer": {"sum": 4}, "level": 3, "text": "a\u2028b"},
    )
    assert load_rows(uri) == [
        Row("a.jsonl:1", "1+1=", "2"),
        Row("a.jsonl:3", tuple(CHAT), {"sum": 4}, {"level": 3, "text": "a\u2028b"}),
    ]


def test_jsonl_with_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "p", "answer": 0}\r\n{"prompt": "q", "answer": false}\r\n')
    assert [(r.prompt, r.answer) for r in load_rows(str(path))] == [("p", 0), ("q", False)]


def test_parquet_rows_equal_jsonl_rows(tmp_path: Path) -> None:
    rows = [{"prompt": CHAT, "answer": "4", "n": 1}, {"prompt": CHAT[1:], "answer": "5", "n": 2}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    read = load_rows(str(tmp_path / "a.parquet"))
    assert [r.row_id for r in read] == ["a.parquet:1", "a.parquet:2"]
    json_read = load_rows(write_jsonl(tmp_path / "a.jsonl", *rows))
    assert [(r.prompt, r.answer, r.columns) for r in read] == [(r.prompt, r.answer, r.columns) for r in json_read]


GOOD = '{"prompt": "p", "answer": 1}'
BAD_LINES: dict[str, tuple[str, str]] = {
    "not JSON": ('{"prompt": ', "line 2 is not JSON"),
    "NaN": ('{"prompt": "p", "answer": NaN}', "line 2 is not JSON: NaN"),
    "too deep": ("[" * 100_000, "line 2 is not JSON"),
    "a list": ("[1]", "line 2: expected an object with prompt and answer, got list"),
    "no answer": ('{"prompt": "p", "gold": 1}', "line 2 has no 'answer'; its columns: prompt, gold"),
    "no prompt": ('{"answer": 1}', "line 2 has no 'prompt'"),
    "null answer": ('{"prompt": "p", "answer": null}', "line 2: the answer is null"),
    "prompt a number": (
        '{"prompt": 3, "answer": 1}',
        "line 2: the prompt must be text or a list of chat messages, got int",
    ),
    "prompt null": ('{"prompt": null, "answer": 1}', "got NoneType"),
    "prompt empty": ('{"prompt": "", "answer": 1}', "line 2: the prompt is empty"),
    "no messages": ('{"prompt": [], "answer": 1}', "line 2: the prompt is an empty list"),
    "message a string": ('{"prompt": ["hi"], "answer": 1}', "line 2, message 0 of the prompt must be"),
    "message without a role": ('{"prompt": [{"content": "hi"}], "answer": 1}', "message 0 of the prompt must be"),
    "lone surrogate": ('{"prompt": "a\\ud800", "answer": 1}', "lone surrogate at character 1"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_named(name: str, tmp_path: Path) -> None:
    line, message = BAD_LINES[name]
    with pytest.raises(DataError, match=re.escape(message)):
        load_rows(write_jsonl(tmp_path / "a.jsonl", GOOD, line))


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"prompt": "\xff", "answer": 1}')
    with pytest.raises(DataError, match="line 1 is not JSON"):
        load_rows(str(tmp_path / "a.jsonl"))


def test_a_missing_file_is_named_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=re.escape(f"there is no file {tmp_path / 'b.jsonl'}")):
        load_rows("b.jsonl")


@pytest.mark.parametrize("name", ["rows.csv", "rows", "rows.jsonl.gz"])
def test_an_unknown_suffix_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(DataError, match=re.escape(".jsonl or .parquet")):
        load_rows(name)


def test_empty_and_broken_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n \n")
    (tmp_path / "a.parquet").write_text("no")
    pyarrow.parquet.write_table(pyarrow.table({"prompt": [], "answer": []}), tmp_path / "b.parquet")
    for name, message in (("a.jsonl", "is empty"), ("b.parquet", "is empty"), ("a.parquet", "is not a Parquet file")):
        with pytest.raises(DataError, match=message):
            load_rows(str(tmp_path / name))


def test_a_parquet_row_at_fault_is_named(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["p", "q"], "answer": [1, None]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="row 2: the answer is null"):
        load_rows(str(tmp_path / "a.parquet"))


BAD_BUILTINS = {
    "builtin:order?split=train": "no builtin:order (did you mean 'orders'?); allowed: addition, orders",
    "builtin:?split=train": "allowed: addition, orders",
    "builtin:orders?split=held-out": "split='held-out' (did you mean 'heldout'?); allowed: train, heldout",
    "builtin:orders?split=sft": "allowed: train, heldout",
    "builtin:orders?split=train&levle=flat": "'levle' (did you mean 'level'?); allowed: split, level, rows, seed",
    "builtin:orders?split=train&digits=2": "no option 'digits'",
    "builtin:orders": "names no split; add ?split=train|heldout",
    "builtin:orders?rows=3": "names no split; add &split=train|heldout",
    "builtin:orders?split=train&rows=0": "rows must be a whole number from 1 to 100000, got '0'",
    "builtin:orders?split=train&rows=": "got ''",
    "builtin:orders?split=train&rows=²": "got '²'",
    "builtin:orders?split=train&seed=-1": "got '-1'",
    "builtin:orders?split=train&split=heldout": "split is given twice",
    "builtin:addition?split=train&digits=0": "digits must be a whole number from 1 to 9",
}


@pytest.mark.parametrize("uri", BAD_BUILTINS)
def test_a_bad_builtin_is_refused_with_what_is_allowed(uri: str) -> None:
    with pytest.raises(DataError, match=re.escape(BAD_BUILTINS[uri])):
        load_rows(uri)


def test_builtin_options_reach_the_generator() -> None:
    assert [r.row_id for r in load_rows("builtin:orders?split=heldout&rows=2")] == [
        "orders/heldout/0",
        "orders/heldout/1",
    ]
    assert "lines" in load_rows("builtin:orders?split=train&level=lines&rows=1")[0].answer
    assert re.fullmatch(r"\d{3}\+\d{3}=", str(load_rows("builtin:addition?split=sft&digits=3&rows=1")[0].prompt))
    one, other = (load_rows(f"builtin:orders?split=train&rows=5&seed={seed}") for seed in (0, 1))
    assert [r.prompt for r in one] != [r.prompt for r in other]
