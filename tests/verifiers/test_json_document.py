"""Verifier json: one document and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from assay.types import Row
from assay.verifiers.registry import build_verifier

CASES = [
    ({}, '{"a": 1}', 1.0),
    ({}, " [1]\n", 1.0),
    ({}, "1", 1.0),
    ({}, '{"a":1}{"a":2}', 0.0),  # G34
    ({}, '{"a":1,"a":2}', 0.0),  # F12
    ({}, '{"a":NaN}', 0.0),  # F12
    ({}, 'Here it is: {"a": 1}', 0.0),
    ({}, '```json\n{"a": 1}\n```', 0.0),
    ({}, "", 0.0),
    ({"root": "object"}, '{"a": 1}', 1.0),
    ({"root": "object"}, "[1]", 0.0),
    ({"root": "object"}, "1", 0.0),
    ({"root": "array"}, "[]", 1.0),
    ({"root": "array"}, "{}", 0.0),
    ({"root": "any"}, "null", 1.0),
]


@pytest.mark.parametrize(("args", "completion", "reward"), CASES)
def test_reward(args: dict[str, Any], completion: str, reward: float) -> None:
    verdict = build_verifier("json", args)(Row("1", "p", None), completion)
    assert verdict is not None
    assert (verdict.reward, verdict.correct) == (reward, reward == 1)
    assert verdict.status == ("ok" if reward else "wrong")
    assert bool(verdict.reason) == (not reward)
