"""Composition: the weighted sum, the worst status, hidden columns, and no exception out of a verdict."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import pytest

from assay.errors import VerifierError
from assay.types import Row, Status, Verdict
from assay.verifiers.composition import Composite, Part, combine
from assay.verifiers.contract import Verifier, accept, crash, reject, unscorable
from assay.verifiers.registry import build_verifier
from assay.verifiers.user import UserVerifier

ROW = Row("r1", "p", "gold", {"other": "silver", "schema": {"type": "object"}})


def fixed(verdict: Verdict | None) -> Verifier:
    return lambda row, completion: verdict


def weighted(**weights: float) -> dict[str, Part]:
    return {name: Part(name, fixed(None), weight) for name, weight in weights.items()}


def timed_out() -> Verdict:
    return Verdict(0.0, "timeout", False, "2 s")


def test_the_reward_is_the_weighted_sum_and_parts_are_kept_apart() -> None:
    parts = [
        Part("json", build_verifier("json", {}), 0.2),
        Part("json_schema", build_verifier("json_schema", {}), 0.2, "schema"),
        Part("json_fields", build_verifier("json_fields", {}), 0.6, "object"),
    ]
    row = Row("r1", "p", "-", {"schema": {"required": ["a", "b"]}, "object": {"a": 1, "b": 2}})
    verdict = Composite(parts)(row, '{"a": 1, "b": 3}')
    assert verdict.reward == pytest.approx(0.2 + 0.2 + 0.6 * 0.5, abs=1e-15)
    assert verdict.components == {"json": 1.0, "json_schema": 1.0, "json_fields": 0.5}
    assert (verdict.status, verdict.correct) == ("wrong", False)
    assert verdict.reason == "json_fields: 1 of 2 leaves right; b: expected 2, got 3"
    assert verdict.milliseconds > 0
    whole = Composite(parts)(row, '{"a": 1, "b": 2}')
    assert (whole.reward, whole.status, whole.correct, whole.reason) == (1.0, "ok", True, "")


def test_the_sum_is_rounded_once() -> None:
    verdicts = {name: accept() for name in "abc"}
    assert combine(verdicts, weighted(a=1e16, b=1.0, c=-1e16), 0.0).reward == 1.0


SEVERITY: list[tuple[list[Verdict], Status]] = [
    ([accept(), accept()], "ok"),
    ([accept(), reject("no")], "wrong"),
    ([timed_out(), reject("no")], "timeout"),
    ([unscorable("gold"), timed_out(), reject("no")], "unscorable"),
    ([reject("no"), crash("bug"), unscorable("gold"), accept()], "crash"),
    ([Verdict(1.0, "ok", False)], "wrong"),
    ([Verdict(0.5, "wrong", True)], "wrong"),
]


@pytest.mark.parametrize(("verdicts", "status"), SEVERITY)
def test_the_worst_status_wins_and_only_faults_make_the_reward_nan(verdicts: list[Verdict], status: Status) -> None:
    verdict = Composite([Part(f"v{i}", fixed(v)) for i, v in enumerate(verdicts)])(ROW, "")
    assert verdict.status == status
    assert verdict.correct == (status == "ok")
    assert math.isnan(verdict.reward) == (status in ("crash", "unscorable"))
    assert len(verdict.components) == len(verdicts)
    for i, v in enumerate(verdicts):
        assert (f"v{i}: {v.reason}" in verdict.reason) == (v.status != "ok" or not v.correct)


def test_a_part_that_does_not_apply_is_left_out() -> None:
    verdict = Composite([Part("a", fixed(None), 5.0), Part("b", fixed(accept()), 0.5)])(ROW, "")
    assert (verdict.reward, verdict.status, verdict.correct, verdict.components) == (0.5, "ok", True, {"b": 1.0})


def test_none_left_is_unscorable() -> None:
    verdict = Composite([Part("a", fixed(None)), Part("b", fixed(None))])(ROW, "")
    assert (verdict.status, verdict.correct, verdict.components) == ("unscorable", False, {})
    assert math.isnan(verdict.reward)
    assert verdict.reason == "no verifier applies to this row"


def test_a_bug_in_a_verifier_is_a_crash() -> None:
    def broken(row: Row, completion: str) -> Verdict:
        raise KeyError("x")

    verdict = Composite([Part("a", broken), Part("b", fixed(accept()))])(ROW, "")
    assert verdict.status == "crash"
    assert verdict.reason == "a: a bug in the verifier: KeyError: 'x'"


def test_built_in_parts_see_their_gold_and_no_other_column_and_users_see_all() -> None:
    seen: list[tuple[Any, Mapping[str, Any]]] = []

    def spy(row: Row, completion: str) -> Verdict:
        seen.append((row.answer, row.columns))
        return accept()

    def user(completions: list[str], answer: list[str], other: list[str], **columns: Any) -> list[float]:
        seen.append((answer, {"other": other, **columns}))
        return [1.0]

    Composite([Part("a", spy), Part("b", spy, 1.0, "other"), Part("c", UserVerifier("m:f", user, {}))])(ROW, "")
    assert seen == [
        ("gold", {}),
        ("silver", {}),
        (["gold"], {"other": ["silver"], "schema": [{"type": "object"}], "prompts": ["p"]}),
    ]


def test_rewards_too_large_for_a_float_stay_finite() -> None:
    for sign in (1, -1):
        verdicts = {"a": Verdict(1e308, "ok", True), "b": Verdict(1e308, "ok", True)}
        assert combine(verdicts, weighted(a=50.0 * sign, b=1.0 * sign), 0.0).reward * sign > 1e308


def test_names_are_made_unique() -> None:
    composite = Composite([Part("exact", fixed(accept())) for _ in range(3)])
    assert list(composite(ROW, "").components) == ["exact", "exact_2", "exact_3"]


def test_a_weight_that_is_no_number_is_refused() -> None:
    with pytest.raises(VerifierError, match=r"'a': the weight must be a finite number, got nan"):
        Composite([Part("a", fixed(None), math.nan)])


def test_check_names_the_missing_column() -> None:
    composite = Composite([Part("exact", build_verifier("exact", {}), 1.0, "gold")])
    message = "row r1 has no column 'gold', which verifier 'exact' needs; its columns: answer, other, schema"
    with pytest.raises(VerifierError, match=re.escape(message)):
        composite.check(ROW)
    assert composite(ROW, "x").status == "unscorable"
    Composite([Part("exact", build_verifier("exact", {}), 1.0, "other")]).check(ROW)


def test_check_names_a_column_that_a_users_function_cannot_do_without() -> None:
    composite = Composite([Part("f", UserVerifier("m:f", lambda completions, completion_ids: [1.0], {}))])
    with pytest.raises(VerifierError, match="no column 'completion_ids', which verifier 'f' needs"):
        composite.check(ROW)


def test_self_check_finds_rows_that_no_completion_could_be_graded_on() -> None:
    composite = Composite(
        [
            Part("json_schema", build_verifier("json_schema", {})),
            Part("exact", build_verifier("exact", {}), 1.0, "other"),
        ]
    )
    bad, good = Row("1", "p", {"type": "dict"}, {"other": "x"}), Row("2", "p", {"type": "object"}, {"other": "x"})
    (found,) = composite.self_check(bad)
    assert found.startswith("json_schema: the schema is invalid at $.type")
    assert composite.self_check(good) == ()


GATED: list[tuple[Verdict, Verdict, float, Status, bool]] = [
    (accept(), accept(), 1.1, "ok", True),
    (accept(), reject("no"), 0.1, "wrong", False),
    (reject("no"), accept(), 0.0, "wrong", False),
    (reject("almost", 0.99), accept(), 0.0, "wrong", False),
    (Verdict(1.0, "ok", False), accept(), 0.0, "wrong", False),
    (timed_out(), accept(), 0.0, "timeout", False),
    (crash("bug"), accept(), math.nan, "crash", False),
    (unscorable("gold"), accept(), math.nan, "unscorable", False),
    (reject("no"), crash("bug"), math.nan, "crash", False),
    (reject("no"), unscorable("gold"), math.nan, "unscorable", False),
]


@pytest.mark.parametrize(("gate", "rest", "reward", "status", "correct"), GATED)
def test_a_gate_that_is_not_fully_rewarded_makes_the_whole_reward_0_but_hides_no_fault(
    gate: Verdict, rest: Verdict, reward: float, status: Status, correct: bool
) -> None:
    parts = [Part("form", fixed(gate), 0.1, gate=True), Part("right", fixed(rest), 1.0)]
    verdict = Composite(parts)(ROW, "")
    assert (verdict.status, verdict.correct) == (status, correct)
    assert verdict.reward == pytest.approx(reward, nan_ok=True)
    assert verdict.components == pytest.approx({"form": gate.reward, "right": rest.reward}, nan_ok=True)


def test_a_closed_gate_also_takes_penalties_and_an_inapplicable_one_is_open() -> None:
    closed = [Part("form", fixed(reject("no")), gate=True), Part("penalty", fixed(accept()), -5.0)]
    assert Composite(closed)(ROW, "").reward == 0.0
    away = [Part("form", fixed(None), gate=True), Part("right", fixed(accept()), 2.0)]
    assert (Composite(away)(ROW, "").reward, Composite(away)(ROW, "").correct) == (2.0, True)


def test_a_part_that_does_not_count_shapes_the_reward_and_leaves_correct_alone() -> None:
    for shaping, correct, status in ((reject("loop", 0.25), True, "wrong"), (crash("bug"), False, "crash")):
        parts = [Part("right", fixed(accept()), 1.0), Part("shape", fixed(shaping), 0.4, counts=False)]
        verdict = Composite(parts)(ROW, "")
        assert (verdict.correct, verdict.status) == (correct, status)
        assert verdict.reward == pytest.approx(math.nan if status == "crash" else 1.1, nan_ok=True)
    alone = [Part("right", fixed(None)), Part("shape", fixed(accept()), 0.4, counts=False)]
    assert (Composite(alone)(ROW, "").reward, Composite(alone)(ROW, "").correct) == (0.4, False)


def test_a_gate_that_does_not_count_and_parts_of_which_none_counts_are_refused() -> None:
    with pytest.raises(VerifierError, match="'a': a gate decides what is correct, so it cannot have counts = false"):
        Composite([Part("a", fixed(None), gate=True, counts=False), Part("b", fixed(None))])
    with pytest.raises(VerifierError, match="no verifier counts"):
        Composite([Part("a", fixed(None), counts=False)])
