"""Verifier exact."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.types import Row
from assay.verifiers.exact import exact

CASES = [
    ("122", "122", 1.0),
    ("122", " 122\n", 1.0),
    ("122\n", "122", 1.0),
    (122, "122", 1.0),
    (0.5, "0.5", 1.0),
    (0, "0", 1.0),
    ("Paris", "Paris", 1.0),
    ("Paris", "paris", 0.0),
    ("122", "1222", 0.0),
    ("122", "12", 0.0),
    ("122", "122 or 123", 0.0),
    ("122", "1 22", 0.0),
    ("42", "4\u200b2", 0.0),  # G21
    ("42", "４２", 0.0),
    ("42", "", 0.0),
    ("42", "\\boxed{42}", 0.0),
    ("é", "e\u0301", 0.0),
]


@pytest.mark.parametrize(("answer", "completion", "reward"), CASES)
def test_reward(answer: Any, completion: str, reward: float) -> None:
    verdict = exact()(Row("1", "p", answer), completion)
    assert verdict is not None
    assert (verdict.reward, verdict.correct, verdict.status) == (reward, reward == 1, "ok" if reward else "wrong")


def test_case_may_be_ignored() -> None:
    verify = exact(case_sensitive=False)
    for answer, completion, correct in (
        ("Paris", "PARIS ", True),
        ("Straße", "STRASSE", True),
        ("Paris", "Rome", False),
    ):
        verdict = verify(Row("1", "p", answer), completion)
        assert verdict is not None
        assert verdict.correct is correct


@pytest.mark.parametrize("answer", [None, True, [], {"a": 1}, "", " \n"])
@pytest.mark.parametrize("completion", ["", "True", "None", "[]"])
def test_an_answer_that_is_no_text_is_unscorable(answer: Any, completion: str) -> None:
    verdict = exact()(Row("1", "p", answer), completion)
    assert verdict is not None
    assert verdict.status == "unscorable"
    assert math.isnan(verdict.reward)


@given(st.text(), st.text(min_size=1).filter(lambda text: text.strip()))
def test_right_exactly_when_equal_but_for_outer_white_space(completion: str, answer: str) -> None:
    for text in (completion, answer, f" {answer}\n"):
        verdict = exact()(Row("1", "p", answer), text)
        assert verdict is not None
        assert verdict.correct == (text.strip() == answer.strip())
        verdict.reason.encode("utf-8")


AFTER = [
    ("<think>7</think>\n42", True),
    ("</think>42", True),
    ("42", False),
    ("<think>42", False),
    ("<think>42</think>", False),
    ("<think>7</think>43", False),
    ("<think>7</think>7</think>42", False),
    ("<think>42</think>42</think>", False),
    ("<think>7</think>42 or 43", False),
    ("<think>7</think>42.0", False),
]


@pytest.mark.parametrize(("completion", "correct"), AFTER)
def test_only_what_stands_behind_the_one_mark_is_judged(completion: str, correct: bool) -> None:
    verdict = exact(after="</think>")(Row("1", "p", 42), completion)
    assert verdict is not None
    assert (verdict.correct, verdict.reward) == (correct, float(correct))


def test_a_gold_that_cannot_be_graded_is_unscorable_before_the_mark_is_looked_for() -> None:
    verdict = exact(after="</think>")(Row("1", "p", ""), "no mark")
    assert verdict is not None
    assert verdict.status == "unscorable"
