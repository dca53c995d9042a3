"""Verifier json_fields: hand-counted shares of leaves, golds that cannot be graded, and no way to stuff."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.types import Row, Verdict
from assay.verifiers.json_fields import flatten, json_fields, show_path

GOLD = {"name": "Ann", "n": 2, "ok": True, "lines": [{"item": "lamp", "price": 3}], "note": None}


def judge(answer: Any, completion: str) -> Verdict:
    verdict = json_fields()(Row("1", "p", answer), completion)
    assert verdict is not None
    return verdict


def changed(**fields: Any) -> str:
    return json.dumps({**GOLD, **fields})


CASES = [
    (GOLD, json.dumps(GOLD), 1.0),
    (GOLD, json.dumps(dict(reversed(GOLD.items()))), 1.0),
    (json.dumps(GOLD), json.dumps(GOLD), 1.0),  # the gold as JSON text
    (GOLD, changed(n=2.0), 1.0),  # 1.0 equals 1
    (GOLD, changed(n=3), 5 / 6),
    (GOLD, changed(n="2"), 5 / 6),
    (GOLD, changed(n=True), 5 / 6),
    (GOLD, changed(ok=1), 5 / 6),  # a boolean is no number
    (GOLD, changed(name="ann"), 5 / 6),
    (GOLD, changed(name="Ann "), 5 / 6),
    (GOLD, changed(note=""), 5 / 6),
    (GOLD, changed(note=False), 5 / 6),
    (GOLD, changed(extra=1), 6 / 7),
    (GOLD, changed(extra={"a": 1, "b": [1, 2]}), 6 / 9),
    (GOLD, changed(lines=[]), 4 / 7),  # two missing, the empty list is extra
    (GOLD, changed(lines={"0": {"item": "lamp", "price": 3}}), 4 / 8),  # an object is no list
    (GOLD, changed(lines=[{"item": "lamp", "price": 3}] * 2), 6 / 8),
    (GOLD, '{"name": "Ann"}', 1 / 6),
    (GOLD, "{}", 0.0),
    (GOLD, "[]", 0.0),
    (GOLD, '"Ann"', 0.0),
    (GOLD, "", 0.0),
    (GOLD, f"{json.dumps(GOLD)} done", 0.0),
    (GOLD, f"```json\n{json.dumps(GOLD)}\n```", 0.0),
    ({"a": 1}, '{"a":1}{"a":2}', 0.0),  # G34
    ({"a": 1}, '{"a":2,"a":1}', 0.0),  # G34: which one counts is not for the reader to choose
    ({"a": 1}, '[{"a":1},{"a":2}]', 0.0),
    ({"a": 1}, '{"a":[1,2,3]}', 0.0),
    ({"a": 1}, '{"a":1,"b":1,"c":1,"d":1}', 0.25),  # stuffing pays less and less
    ({"a": []}, '{"a":{}}', 0.0),
    ({"a": []}, '{"a":[]}', 1.0),
    ({}, "{}", 1.0),
    ([1, 2], "[1, 2]", 1.0),
    ([1, 2], "[2, 1]", 0.0),
    ((1, {"a": ()}), '[1, {"a": []}]', 1.0),
    ({"a": 2**53 + 1}, '{"a": 9007199254740993}', 1.0),
    ({"a": 2**53 + 1}, '{"a": 9007199254740992}', 0.0),
]


@pytest.mark.parametrize(("answer", "completion", "reward"), CASES)
def test_reward_is_the_share_of_leaves_right(answer: Any, completion: str, reward: float) -> None:
    verdict = judge(answer, completion)
    assert verdict.reward == pytest.approx(reward, abs=1e-15)
    assert verdict.correct == (reward == 1)
    assert verdict.status == ("ok" if reward == 1 else "wrong")
    assert len(verdict.reason) <= 300


def test_the_reason_names_what_differs() -> None:
    assert judge({"a": 1, "b": [{"c": "x"}]}, '{"a": 1, "b": [{"c": "y"}], "d": 0}').reason == (
        "1 of 3 leaves right; b[0].c: expected 'x', got 'y', d is extra"
    )
    assert judge({"a": 1}, "{}").reason == "0 of 2 leaves right; a is missing, the root is extra"
    gold, got = {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, '{"e": 1}'
    assert judge(gold, got).reason == "1 of 5 leaves right; a is missing, b is missing, c is missing and 1 more"


UNSCORABLE = {
    "nothing": None,
    "a number": 3,
    "text": "lamp",
    "a scalar as text": '"lamp"',
    "NaN": {"a": math.nan},
    "infinity": [math.inf],
    "a date": {"a": datetime.date(2024, 1, 1)},
    "bytes": {"a": b"x"},
    "keys no text": {1: "a"},
}


@pytest.mark.parametrize("completion", ["{}", "junk", '{"a": 1}'])
@pytest.mark.parametrize("name", UNSCORABLE)
def test_a_gold_that_is_no_json_object_is_unscorable(name: str, completion: str) -> None:
    verdict = judge(UNSCORABLE[name], completion)
    assert verdict.status == "unscorable"
    assert math.isnan(verdict.reward)
    assert "answer" in verdict.reason


def test_flatten_and_show_path() -> None:
    assert flatten({"a": [1, {"b": []}], "c": {}}) == {("a", 0): 1, ("a", 1, "b"): [], ("c",): {}}
    assert list(flatten([[1, 2], 3])) == [(0, 0), (0, 1), (1,)]
    assert flatten(5) == {(): 5}
    assert [show_path(p) for p in ((), ("a", 1, "b"), (0, "x"))] == ["the root", "a[1].b", "[0].x"]


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
json_values = st.recursive(
    scalars,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=3), json_values, max_size=4)


@given(objects)
def test_the_gold_itself_is_right_and_anything_extra_is_not(gold: dict[str, Any]) -> None:
    assert judge(gold, json.dumps(gold)) == Verdict(1.0, "ok", True)
    assert not judge(gold, json.dumps({**gold, "extra": 0})).correct


@given(objects, json_values.map(json.dumps) | st.text())
def test_no_completion_raises_and_the_reward_is_a_share(gold: dict[str, Any], completion: str) -> None:
    verdict = judge(gold, completion)
    assert 0 <= verdict.reward <= 1
    assert verdict.correct == (verdict.reward == 1)
