"""The user's own functions: TRL's signature, the decorator, and every way in which a function can fail."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import assay
from assay.errors import VerifierError
from assay.types import Row, Verdict
from assay.verifiers.user import UserVerifier

CHAT = ({"role": "user", "content": "2+2?"},)
TEXT_ROW = Row("1", "2+2=", "4", {"level": 3})
CHAT_ROW = Row("2", CHAT, "4", {"level": 3})


def judge(function: Callable[..., Any], row: Row = TEXT_ROW, completion: str = "4", **args: Any) -> Verdict | None:
    return UserVerifier("m:fn", function, args)(row, completion)


def trl(result: Any) -> Callable[..., Any]:
    """A function of TRL's signature that returns ``result``."""
    return lambda prompts, completions, **columns: result


def marked(result: Any) -> Callable[..., Any]:
    return assay.verifier(lambda prompt, completion, answer: result)


def test_trl_gets_lists_of_one_with_all_columns_and_arguments() -> None:
    calls: list[dict[str, Any]] = []

    def reward(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        calls.append({"prompts": prompts, "completions": completions, **columns})
        return [0.5]

    assert judge(reward, TEXT_ROW, scale=2) == Verdict(0.5, "wrong", False, "reward 0.5")
    judge(reward, CHAT_ROW)
    assert calls == [
        {"prompts": ["2+2="], "completions": ["4"], "answer": ["4"], "level": [3], "scale": 2},
        {
            "prompts": [[{"role": "user", "content": "2+2?"}]],
            "completions": [[{"role": "assistant", "content": "4"}]],
            "answer": ["4"],
            "level": [3],
        },
    ]


def test_trl_functions_may_name_only_what_they_use() -> None:
    assert judge(lambda completions: [1.0]) == Verdict(1.0, "ok", True)
    assert judge(lambda completions, answer: [float(completions == answer)]) == Verdict(1.0, "ok", True)
    assert judge(lambda completions, level, **kwargs: [level[0] / 4]) == Verdict(0.75, "wrong", False, "reward 0.75")


def test_marked_functions_get_plain_values() -> None:
    @assay.verifier
    def check(prompt: Any, completion: str, answer: str, level: int, bonus: float = 0.0) -> float:
        assert prompt in ("2+2=", [dict(CHAT[0])])
        return float(completion == answer) * level / 3 + bonus

    assert check("2+2=", "4", "4", 3) == 1.0, "the decorated function stays callable"
    for row in (TEXT_ROW, CHAT_ROW):
        assert judge(check, row) == Verdict(1.0, "ok", True)
        assert judge(check, row, "5") == Verdict(0.0, "wrong", False, "reward 0")
        assert judge(check, row, bonus=0.5) == Verdict(1.5, "ok", True)
    assert judge(assay.verifier(lambda p, c, a, **columns: sorted(columns) == ["level"])) == Verdict(1.0, "ok", True)
    clash = Row("3", "p", "4", {"prompt": "x", "answer": "y"})
    assert judge(assay.verifier(lambda prompt, completion, answer, **columns: answer == "4"), clash) == Verdict(
        1.0, "ok", True
    )


GRADES: list[tuple[Any, float]] = [
    (True, 1.0),
    (False, 0.0),
    (1, 1.0),
    (0.999, 0.999),
    (2.5, 2.5),
    (-1.0, -1.0),
    (np.float32(0.5), 0.5),
    (np.int64(1), 1.0),
    (np.bool_(True), 1.0),
    (torch.tensor(0.25), 0.25),
]


@pytest.mark.parametrize(("value", "reward"), GRADES)
def test_numbers_are_graded_and_one_or_more_is_correct(value: Any, reward: float) -> None:
    for verdict in (judge(trl([value])), judge(trl((value,))), judge(marked(value))):
        assert verdict is not None
        assert (verdict.reward, verdict.correct) == (reward, reward >= 1)
        assert verdict.status == ("ok" if reward >= 1 else "wrong")


def test_none_does_not_apply_and_a_verdict_passes_through() -> None:
    assert judge(trl([None])) is None
    assert judge(marked(None)) is None
    for verdict in (Verdict(0.3, "timeout", False, "slow"), Verdict(0.9, "ok", True)):
        assert judge(marked(verdict)) == verdict
    ungraded = judge(marked(Verdict(math.nan, "unscorable", False, "no gold")))
    assert ungraded is not None
    assert ungraded.status == "unscorable"


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raises(error: BaseException) -> Callable[..., Any]:
    def reward(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        raise error

    return reward


CRASHES: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (raises(ValueError("bad gold")), "ValueError: bad gold"),
    "exits": (raises(SystemExit(0)), "SystemExit: 0"),
    "recursion": (raises(RecursionError("deep")), "RecursionError: deep"),
    "unprintable": (raises(UnprintableError()), "UnprintableError: (its message raised RuntimeError)"),
    "surrogate": (raises(ValueError("\ud800")), r"ValueError: \ud800"),
    "no list": (trl(1.0), "expected a list of 1 reward"),
    "nothing": (trl(None), "returned None, expected a list of 1 reward"),
    "too many": (trl([1.0, 0.0]), "expected a list of 1 reward"),
    "too few": (trl([]), "expected a list of 1 reward"),
    "text": (trl(["1"]), "(str), expected a number or None"),
    "list in list": (trl([[1.0]]), "(list), expected a number or None"),
    "NaN": (trl([math.nan]), "returned nan"),
    "infinity": (trl([math.inf]), "returned inf"),
    "two numbers": (trl([np.zeros(2)]), "ValueError"),
    "marked text": (marked("ok"), "(str), expected a number or None"),
    "marked NaN": (marked(math.nan), "returned nan"),
    "NaN that is ok": (marked(Verdict(math.nan, "ok", True)), "NaN goes with crash or unscorable"),
    "crash with a number": (marked(Verdict(0.0, "crash", False)), "NaN goes with crash or unscorable"),
    "unknown status": (marked(Verdict(1.0, "fine", True)), "status 'fine', expected one of ok, wrong"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CRASHES)
def test_a_function_that_fails_crashes_and_never_counts_as_wrong(name: str) -> None:
    function, reason = CRASHES[name]
    verdict = judge(function)
    assert verdict is not None
    assert (verdict.status, verdict.correct) == ("crash", False)
    assert math.isnan(verdict.reward)
    assert reason in verdict.reason


def test_an_interrupt_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        judge(raises(KeyboardInterrupt()))


async def asynchronous(prompts: list[str], completions: list[str]) -> list[float]:
    return [1.0]


REFUSED: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "other signature": (lambda text: 1.0, {}, "has the parameters (text); expected fn(prompts, completions"),
    "unmarked": (lambda prompt, completion, answer: 1.0, {}, "@assay.verifier over fn(prompt, completion, answer)"),
    "marked with two": (assay.verifier(lambda p, c: 1.0), {}, "has the parameters (p, c)"),
    "async": (asynchronous, {}, "is an async function"),
    "unknown argument": (lambda completions, scale=1: [1.0], {"sacle": 2}, "no argument 'sacle'; allowed: scale"),
    "argument of a marked one": (marked(1.0), {"answer": 2}, "no argument 'answer'; allowed: none"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_that_could_never_be_called_is_refused(name: str) -> None:
    function, args, message = REFUSED[name]
    with pytest.raises(VerifierError, match=re.escape(message)):
        UserVerifier("m:fn", function, args)


def test_required_columns() -> None:
    def reward(completions: list[str], answer: list[str], level: list[int], scale: int, size: int = 1) -> list[float]:
        return [1.0]

    assert UserVerifier("m:fn", reward, {"scale": 2}).required_columns == {"level"}
    assert UserVerifier("m:fn", trl([1.0]), {}).required_columns == frozenset()
    assert UserVerifier("m:fn", assay.verifier(lambda p, c, a, level, x=1: 1.0), {}).required_columns == {"level"}
