"""Verifier json_schema: valid or not, schemas that cannot judge, and completions that would stall the library."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.types import Row, Verdict
from assay.verifiers.json_schema import json_schema

ORDER = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"type": "string"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
INTEGER = {"type": "object", "properties": {"a": {"type": "integer"}}}
TREE = {"$defs": {"n": {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}
DRAFT4 = "http://json-schema.org/draft-04/schema#"


def judge(schema: Any, completion: str) -> Verdict:
    verdict = json_schema()(Row("1", "p", schema), completion)
    assert verdict is not None
    return verdict


ACCEPTED = [
    (ORDER, '{"a": 1, "b": "x"}'),
    (ORDER, ' {"b": "", "a": 7.0}\n'),
    (INTEGER, '{"a": 1.0}'),  # F12: an integer since draft 6
    (INTEGER, '{"b": true}'),
    (json.dumps(ORDER), '{"a": 1, "b": "x"}'),
    ({}, "null"),
    (TREE, '{"c": {"c": {}}}'),
    ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, '{"type": "string"}'),
    ({"$id": "http://x.org/root", "$defs": {"a": {"$id": "b", "type": "integer"}}, "$ref": "b"}, "1"),
    ({"type": "string", "format": "date"}, '"not a date"'),
    ({"uniqueItems": True}, '[1, true, 0, false, "1", {"a": 1}, [1]]'),
    ({"uniqueItems": False}, "[1, 1]"),
    ({"uniqueItems": True}, '"aa"'),
    ({"multipleOf": 5e-324}, "1e308"),
]
REJECTED = [
    (ORDER, '{"a": 1}'),
    (ORDER, '{"a": 0, "b": "x"}'),
    (ORDER, '{"a": "1", "b": "x"}'),
    (ORDER, '{"a": 1, "b": "x", "c": 0}'),
    (ORDER, "[]"),
    (ORDER, json.dumps(ORDER)),  # G34: the schema echoed
    (ORDER, '{"a": 1, "b": "x"} {"a": 1, "b": "x"}'),  # G34
    (ORDER, '{"a": 1, "b": "x", "b": "x"}'),  # G34, F12
    (INTEGER, '{"a": true}'),  # F12
    (INTEGER, '{"a": NaN}'),  # F12
    (INTEGER, '{"a": 1.5}'),
    (INTEGER, '{"a": 1} so it is'),
    ({}, ""),
    ({}, "```\n{}\n```"),
    ({"$schema": DRAFT4, "type": "integer"}, "1.0"),  # draft 4: no integer
    ({"uniqueItems": True}, "[1, 1.0]"),
    ({"uniqueItems": True}, '[{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]'),
    ({"multipleOf": 0.1}, "1" + "0" * 400),
]
UNSCORABLE: dict[str, tuple[Any, str]] = {
    "no JSON Schema type": ({"type": "dict"}, "invalid at $.type"),  # F12: BFCL
    "no schema": (None, "must be an object, got NoneType"),
    "a number": (3, "must be an object, got int"),
    "text": ("the schema", "the schema is not JSON"),
    "not JSON": ({"const": {1, 2}}, "the schema is not JSON"),
    "NaN": ({"const": math.nan}, "the schema is not JSON"),
    "bad pattern": ({"pattern": "("}, "invalid at $.pattern"),
    "remote": ({"$ref": "http://example.com/x.json"}, "nothing is fetched"),
    "file": ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "nothing is fetched"),
    "dangling": ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "leads nowhere"),
    "to itself": ({"$ref": "#"}, "leads back to itself"),
    "to itself, deep": ({"properties": {"a": {"$ref": "#/properties/a"}}}, "leads back to itself"),
    "to itself, by allOf": ({"allOf": [{"$ref": "#"}]}, "leads back to itself"),
    "unknown draft": ({"$schema": "http://example.com/draft-99"}, "no draft that is known"),
    "draft no text": ({"$schema": ["x"]}, "no draft that is known"),
}


@pytest.mark.parametrize(("schema", "completion"), ACCEPTED)
def test_accepted(schema: Any, completion: str) -> None:
    assert judge(schema, completion) == Verdict(1.0, "ok", True)


@pytest.mark.parametrize(("schema", "completion"), REJECTED)
def test_rejected_with_a_reason(schema: Any, completion: str) -> None:
    verdict = judge(schema, completion)
    assert (verdict.reward, verdict.status, verdict.correct) == (0.0, "wrong", False)
    assert 0 < len(verdict.reason) <= 300


@pytest.mark.parametrize("completion", ["{}", "no JSON", '{"a": 1}'])
@pytest.mark.parametrize("name", UNSCORABLE)
def test_a_schema_that_cannot_judge_is_unscorable_whatever_the_completion(name: str, completion: str) -> None:
    schema, reason = UNSCORABLE[name]
    verdict = judge(schema, completion)
    assert math.isnan(verdict.reward)
    assert verdict.status == "unscorable"
    assert reason in verdict.reason


def test_the_schema_of_the_arguments_comes_before_the_answer() -> None:
    verify = json_schema(schema=INTEGER)
    for answer in (None, {"type": "dict"}, "anything"):
        verdict = verify(Row("1", "p", answer), '{"a": 1}')
        assert verdict is not None
        assert verdict.correct


DEEP_REFS = {
    "$defs": {"n": {"allOf": [{"anyOf": [{"properties": {"c": {"$ref": "#/$defs/n"}}}]}]}},
    "$ref": "#/$defs/n",
}


@pytest.mark.parametrize(
    ("schema", "completion"),
    [
        ({"uniqueItems": True}, "[" + ",".join(f'{{"a":{i}}}' for i in range(9000)) + "]"),
        ({"uniqueItems": True}, "[" + ",".join(["[]", "{}"] + [f'["{i}"]' for i in range(10_000)]) + "]"),
        (DEEP_REFS, '{"c":' * 63 + "{}" + "}" * 63),
        (TREE, '{"c":' * 5000 + "{}" + "}" * 5000),
        (ORDER, '{"a":' + "[" * 90_000),
    ],
    ids=["unique objects", "unique lists", "deep references", "too deep", "unclosed"],
)
def test_a_hostile_completion_is_graded_within_a_second(schema: Any, completion: str) -> None:
    began = time.perf_counter()
    assert judge(schema, completion).status in ("ok", "wrong")
    assert time.perf_counter() - began < 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c", "type", "$ref"]), children, max_size=3)
    ),
    max_leaves=8,
)


@given(json_values.map(json.dumps) | st.text())
def test_no_completion_raises_or_is_unscorable(completion: str) -> None:
    for schema in (ORDER, TREE, {"uniqueItems": True, "multipleOf": 0.1}):
        assert judge(schema, completion).status in ("ok", "wrong")


@given(json_values, st.sampled_from(["{}", "[1, 1]", "x"]))
def test_no_schema_raises(schema: Any, completion: str) -> None:
    verdict = judge(schema, completion)
    assert math.isnan(verdict.reward) == (verdict.status == "unscorable")
