"""Strict JSON: what is a document, what is refused and why, and that nothing else happens on any input."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.verifiers.strict_json import MAX_BYTES, MAX_DEPTH, StrictJsonError, parse_strict

ACCEPTED: dict[str, Any] = {
    "{}": {},
    " \n\t[1, 2.5, -3e2, true, null]\r\n": [1, 2.5, -300.0, True, None],
    '{"a": {"b": ["é", "\\u00e9", "\\ud83d\\ude00"]}}': {"a": {"b": ["é", "é", "😀"]}},
    '"text"': "text",
    "0": 0,
    '{"a": 1, "A": 2}': {"a": 1, "A": 2},
    "1e308": 1e308,
    "[" * MAX_DEPTH + "]" * MAX_DEPTH: None,
    '"' + "a" * (MAX_BYTES - 2) + '"': None,
}


@pytest.mark.parametrize("text", ACCEPTED, ids=lambda text: text[:20])
def test_accepted(text: str) -> None:
    expected = ACCEPTED[text]
    assert parse_strict(text) == (json.loads(text) if expected is None else expected)


REFUSED = {
    "": "empty",
    " \n": "empty",
    '{"a": 1, "a": 2}': "duplicate key 'a'",
    '{"a": 1, "\\u0061": 1}': "duplicate key 'a'",
    '[{"x": {"a": 1, "a": 1}}]': "duplicate key 'a'",
    '{"a": NaN}': "NaN is not JSON",
    "Infinity": "Infinity is not JSON",
    "[-Infinity]": "-Infinity is not JSON",
    "1e999": "overflows",
    "-1e999": "overflows",
    "1" + "0" * 400: "overflows",
    "9" * 50_000: "overflows",
    '{"a": 1} trailing': "Extra data",
    '{"a": 1}{"a": 2}': "Extra data",
    '{"a": 1}\n{"a": 2}': "Extra data",
    'Sure: {"a": 1}': "not one JSON document",
    '```json\n{"a": 1}\n```': "a code fence",
    '"\\ud800"': "lone surrogate",
    '"\ud800"': "lone surrogate",
    '{"\\udfff": 1}': "lone surrogate",
    "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1): "nested deeper than 64",
    '{"a":' * 90 + "1" + "}" * 90: "nested deeper than 64",
    "[" * 40_000 + "]" * 40_000: "nested deeper than 64",
    "[" * 90_000: "nested deeper than 64",
    '"' + "a" * (MAX_BYTES - 1) + '"': "100001 bytes",
    '"' + "é" * (MAX_BYTES // 2) + '"': "100002 bytes",
    "{'a': 1}": "not one JSON document",
    '{"a": 1,}': "not one JSON document",
    "[1,]": "not one JSON document",
    "{a: 1}": "not one JSON document",
    "[1] // comment": "Extra data",
    '"a\nb"': "not one JSON document",
    "01": "Extra data",
    "+1": "not one JSON document",
    ".5": "not one JSON document",
    "１": "not one JSON document",
    "True": "not one JSON document",
    "\ufeff{}": "not one JSON document",
    "\u200b{}": "not one JSON document",
    "{}\x00": "Extra data",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: ascii(text[:20]))
def test_refused(text: str) -> None:
    with pytest.raises(StrictJsonError) as caught:
        parse_strict(text)
    assert REFUSED[text] in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 20_000,
        '"\\"' * 33_000,
        "[" + "{}," * 33_000,
        "9" * 100_000,
        "[1e" + "9" * 99_000,
        " " * 100_000,
    ],
    ids=lambda text: text[:8],
)
def test_a_hostile_text_is_refused_at_once(text: str) -> None:
    began = time.perf_counter()
    with pytest.raises(StrictJsonError):
        parse_strict(text)
    assert time.perf_counter() - began < 1


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_what_json_writes_is_read_back(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert parse_strict(text) == value


@given(st.text(alphabet=st.characters()) | st.text(alphabet='{}[]",:0123456789eE+-.\\untrfalsNIiy \ud800'))
def test_any_text_is_a_document_that_json_reads_too_or_refused(text: str) -> None:
    try:
        value = parse_strict(text)
    except StrictJsonError:
        return
    assert value == json.loads(text.strip())
