"""Verifier language: shares by script."""

from __future__ import annotations

import pytest

from assay.types import Row
from assay.verifiers.language import Language, language

CASES: list[tuple[Language, str, float]] = [
    ("en", "Tom has 5 apples.", 1.0),
    ("en", "<think>5+3=8</think>8", 1.0),
    ("en", "", 1.0),
    ("en", "5 + 3 = 8", 1.0),
    ("en", "naïve café", 1.0),
    ("en", "ab苹果", 0.5),
    ("en", "苹果", 0.0),
    ("en", "abcд", 0.75),
    ("en", "ａｂ", 1.0),  # full-width Latin
    ("ru", "яблоко", 1.0),
    ("ru", "яa", 0.5),
    ("zh", "苹果 5", 1.0),
    ("ja", "りんごリンゴ林檎", 1.0),
    ("ko", "사과", 1.0),
    ("el", "μήλο", 1.0),
    ("hi", "सेब", 1.0),
    ("ar", "تفاح", 1.0),
    ("he", "תפוח", 1.0),
    ("de", "Äpfel", 1.0),
]


@pytest.mark.parametrize(("expected", "text", "reward"), CASES)
def test_reward(expected: Language, text: str, reward: float) -> None:
    verdict = language(language=expected)(Row("1", "p", None), text)
    assert verdict is not None
    assert verdict.reward == pytest.approx(reward)
    assert verdict.correct == (verdict.status == "ok") == (reward == 1.0)


def test_a_stated_limit_another_language_of_the_same_script_passes() -> None:
    verdict = language()(Row("1", "p", None), "Combien de pommes y a-t-il ?")
    assert verdict is not None
    assert verdict.correct


def test_the_reason_says_how_many() -> None:
    verdict = language()(Row("1", "p", None), "ab苹果果")
    assert verdict is not None
    assert verdict.reason == "3 of 5 letters are not en's"
