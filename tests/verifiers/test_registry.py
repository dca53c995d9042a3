"""Verifiers by name, their arguments, and modules of the user."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.types import Row
from assay.verifiers.registry import VERIFIERS, build_verifier
from assay.verifiers.user import UserVerifier

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("jsonfields", {}, "no verifier 'jsonfields' (did you mean 'json_fields'?); allowed: exact, json"),
    ("", {}, "no verifier ''; allowed: exact"),
    ("exact", {"case_sensitiv": 1}, "(did you mean 'case_sensitive'?); allowed: case_sensitive: bool = True"),
    ("exact", {"case_sensitive": "no"}, "argument case_sensitive = 'no': Input should be a valid boolean; allowed: "),
    ("exact", {"case_sensitive": 1}, "argument case_sensitive = 1: Input should be a valid boolean"),
    ("json", {"root": "number"}, "argument root = 'number': Input should be 'any', 'object' or 'array'"),
    ("json_schema", {"schema": 3}, "argument schema = 3: "),
    ("json_fields", {"schema": {}}, "takes no argument 'schema'; allowed: none"),
    ("no_such_module_of_mine:fn", {}, "importing no_such_module_of_mine failed (ModuleNotFoundError"),
    ("math:sqr", {}, "there is no sqr in math (did you mean 'sqrt'?)"),
    ("math:pi", {}, "a float, no function, is pi in math"),
    (":fn", {}, "is no module:function"),
    ("exact:", {}, "is no module:function"),
]


@pytest.mark.parametrize(("name", "args", "message"), REFUSED)
def test_refused_with_what_is_allowed(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(VerifierError, match=re.escape(message)):
        build_verifier(name, args)


def test_arguments_reach_the_verifier() -> None:
    row = Row("1", "p", "a")
    for flag, correct in ((True, False), (False, True)):
        verdict = build_verifier("exact", {"case_sensitive": flag})(row, "A")
        assert verdict is not None
        assert verdict.correct is correct
    verdict = build_verifier("json_schema", {"schema": {"type": "integer"}})(row, "1")
    assert verdict is not None
    assert verdict.correct


def test_a_function_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reward_of_cwd.py").write_text(
        "def short(completions, **_):\n    return [float(len(c) < 3) for c in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])  # as in a console script
    verifier = build_verifier("reward_of_cwd:short", {})
    assert isinstance(verifier, UserVerifier)
    for completion, reward in (("ab", 1.0), ("abc", 0.0)):
        verdict = verifier(Row("1", "p", None), completion)
        assert verdict is not None
        assert verdict.reward == reward


@pytest.mark.parametrize("code", ["raise RuntimeError('at import')", "import sys; sys.exit(3)", "def f(:"])
def test_a_module_that_cannot_be_imported_is_an_error_that_says_why(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_reward.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        VerifierError, match=r"importing broken_reward failed \((RuntimeError: at import|SystemExit: 3|SyntaxError)"
    ):
        build_verifier("broken_reward:f", {})


answers = st.none() | st.text() | st.integers() | st.dictionaries(st.text(), st.integers() | st.text())


@given(answers, st.text())
def test_every_verifier_without_arguments_is_total_and_deterministic(answer: Any, completion: str) -> None:
    for name in VERIFIERS:
        row = Row("1", "p", answer)
        first, second = (build_verifier(name, {})(row, completion) for _ in range(2))
        assert first is not None
        assert second is not None
        assert (first.reward != first.reward) == (first.status == "unscorable")
        assert repr(first) == repr(second)
        first.reason.encode("utf-8")
