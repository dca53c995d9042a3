"""Verifier think_format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.types import Row
from assay.verifiers.think_format import Thinking, split_thinking, think_format

ROW = Row("1", "p", None)

ACCEPTED = [
    "<think>2+2=4</think>4",
    "<think>\n2+2=4\n</think>\n4",
    " \n<think>a</think> b \n",
    "<think>if a < b then </Think> <thinking></think>4",
]
REFUSED = [
    ("", "expected <think> once, found it 0 times"),
    ("4", "expected <think> once, found it 0 times"),
    ("2+2=4</think>4", "expected <think> once, found it 0 times"),
    ("<think>2+2=4", "expected </think> once, found it 0 times"),
    ("<think>2+2=4</think>", "no answer follows </think>"),
    ("<think>2+2=4</think> \n\t", "no answer follows </think>"),
    ("<think></think>4", "nothing is thought"),
    ("<think> \n\u2003</think>4", "nothing is thought"),
    ("So <think>a</think>4", "'So' stands before it"),
    ("<think>a<think>b</think>c</think>4", "expected <think> once, found it 2 times"),
    ("<think>a</think>4<think>b</think>5", "expected <think> once, found it 2 times"),
    ("<think>a</think>4</think>", "expected </think> once, found it 2 times"),
    ("</think>4<think>a", "stands before it"),
    ("</think><think>a 4", "stands before it"),
    ("<THINK>a</THINK>4", "expected <think> once, found it 0 times"),
    ("<think >a</think>4", "expected <think> once, found it 0 times"),
]


@pytest.mark.parametrize("completion", ACCEPTED)
def test_accepted(completion: str) -> None:
    verdict = think_format()(ROW, completion)
    assert verdict is not None
    assert (verdict.reward, verdict.status, verdict.correct) == (1.0, "ok", True)


@pytest.mark.parametrize(("completion", "reason"), REFUSED)
def test_refused_with_the_reason(completion: str, reason: str) -> None:
    verdict = think_format()(ROW, completion)
    assert verdict is not None
    assert (verdict.reward, verdict.status, verdict.correct) == (0.0, "wrong", False)
    assert reason in verdict.reason


def test_the_sides_are_stripped() -> None:
    assert split_thinking("\n<think>\n a b\n</think>\n 4 \n") == Thinking("a b", "4")


def test_a_long_completion_of_tags_is_refused_at_once() -> None:
    assert isinstance(split_thinking("<think>" * 100_000), str)


parts = st.lists(st.sampled_from(["<think>", "</think>", " ", "a", "\n"]), max_size=8).map("".join)


@given(parts)
def test_accepted_only_with_each_tag_once_in_order_and_text_on_both_sides(completion: str) -> None:
    found = split_thinking(completion)
    words = completion.replace("<think>", " O ").replace("</think>", " C ").split()
    well_formed = (
        words.count("O") == words.count("C") == 1 and words[0] == "O" and 1 < words.index("C") < len(words) - 1
    )
    assert isinstance(found, Thinking) == well_formed
