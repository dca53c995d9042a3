"""Verifier repetition: hand-counted n-grams, and loops of every kind."""

from __future__ import annotations

import time

import pytest

from assay.types import Row
from assay.verifiers.repetition import repeated_share, repetition

ROW = Row("1", "p", None)

CASES = [
    ("", 2, 0.0),
    ("one", 2, 0.0),
    ("a b c d", 2, 0.0),
    ("a b a b a", 2, 0.5),  # ab ba ab ba: 2 of 4 different
    ("a a a a a", 2, 0.75),
    ("a b c a b c", 4, 0.0),  # abca bcab cabc: all different
    ("1212", 2, 1 / 3),  # digits stand alone: 12 21 12
    ("8+8+8+", 2, 3 / 5),  # 8+ +8 8+ +8 8+
]


@pytest.mark.parametrize(("text", "n", "share"), CASES)
def test_the_share_counted_by_hand(text: str, n: int, share: float) -> None:
    assert repeated_share(text, n) == pytest.approx(share)
    verdict = repetition(n=n)(ROW, text)
    assert verdict is not None
    assert verdict.reward == pytest.approx(1 - share)
    assert verdict.correct == (verdict.status == "ok") == (share == 0)


@pytest.mark.parametrize("unit", ["the cat sat ", "ab", "a", "abc", "苹果", "8+8=16\n", "\n- x", "_", "1"])
def test_a_loop_earns_next_to_nothing_with_or_without_spaces(unit: str) -> None:
    verdict = repetition()(ROW, unit * 500)
    assert verdict is not None
    assert verdict.reward < 0.1


def test_plain_text_costs_nothing_up_to_what_is_allowed_and_the_rest_is_rescaled() -> None:
    text = "a b a b a"
    for allowed, reward in ((0.5, 1.0), (0.6, 1.0), (0.2, 0.5 / 0.8)):
        verdict = repetition(n=2, allowed=allowed)(ROW, text)
        assert verdict is not None
        assert verdict.reward == pytest.approx(reward)
    assert repeated_share("Each: 6*6=36\nShared: 36/3=12", 4) == 0


def test_a_hundred_kilobytes_take_no_time() -> None:
    began = time.perf_counter()
    repetition()(ROW, "a b c " * 17_000)
    assert time.perf_counter() - began < 2
