"""assay score: one line out per line in, and what a bad line says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from assay.cli.score import score
from assay.errors import AssayError

KEYS = ["reward", "status", "correct", "reason", "ms", "components"]


def run(tmp_path: Path, lines: list[Any], verifier: str, args: str = "{}") -> list[dict[str, Any]]:
    """The command's answers, through a typer app as the real one is. Raises what the command raises."""
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(score)
    result = CliRunner().invoke(app, ["--verifier", verifier, "--args", args, str(file)])
    if result.exception is not None:
        raise result.exception
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_one_line_out_per_line_in(tmp_path: Path) -> None:
    lines = [
        {"prompt": "37+85=", "completion": "122", "answer": "122"},
        {"prompt": [{"role": "user", "content": "?"}], "completion": "12\u2028", "answer": "122", "level": 1},
        {"prompt": "p", "completion": "\ud800", "answer": "122"},
        {"prompt": "p", "completion": "122", "answer": {}},
    ]
    out = run(tmp_path, lines, "exact")
    assert [list(line) for line in out] == [KEYS] * 4
    assert [line["reward"] for line in out] == [1.0, 0.0, 0.0, None]
    assert [line["status"] for line in out] == ["ok", "wrong", "wrong", "unscorable"]
    assert [line["correct"] for line in out] == [True, False, False, False]
    assert [line["components"] for line in out] == [{"exact": 1.0}, {"exact": 0.0}, {"exact": 0.0}, {"exact": None}]
    assert all(line["ms"] >= 0 for line in out)
    assert [bool(line["reason"]) for line in out] == [False, True, True, True]


def test_arguments_and_partial_reward(tmp_path: Path) -> None:
    line: dict[str, Any] = {"prompt": "p", "completion": "PARIS", "answer": "Paris"}
    assert run(tmp_path, [line], "exact", '{"case_sensitive": false}')[0]["reward"] == 1.0
    line = {"prompt": "p", "completion": '{"a": 1, "b": 3}', "answer": {"a": 1, "b": 2}}
    assert run(tmp_path, [line], "json_fields")[0]["reward"] == 0.5
    assert run(tmp_path, [{"completion": "{}"}], "json")[0]["reward"] == 1.0


def test_a_users_function_that_prints_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print('loaded')\ndef fn(prompts, completions, **c):\n    print('called')\n    return [1 / c['level'][0]]\n"
    (tmp_path / "noisy_reward.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    lines = [{"prompt": "p", "completion": "x", "answer": 1, "level": level} for level in (1, 0, 2)]
    out = run(tmp_path, lines, "noisy_reward:fn")
    assert [(line["reward"], line["status"]) for line in out] == [(1.0, "ok"), (None, "crash"), (0.5, "wrong")]
    assert "ZeroDivisionError: division by zero" in out[1]["reason"]


GOOD = {"prompt": "p", "completion": "x", "answer": "x"}
BAD: list[tuple[Any, str]] = [
    ("{", "line 3 is not JSON"),
    ("[1]", "line 3: expected an object, got list"),
    ({"prompt": "p", "answer": "x"}, "line 3: 'completion' must be text, got nothing"),
    ({"completion": ["x"], "answer": "x"}, "line 3: 'completion' must be text, got list"),
    ({"prompt": 1, "completion": "x"}, "line 3: 'prompt' must be text or a list of chat messages, got int"),
    ({"prompt": [1], "completion": "x"}, "line 3: 'prompt' must be text"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_a_bad_line_is_named_with_its_number_in_the_file(line: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(AssayError) as caught:
        run(tmp_path, [GOOD, "", line], "exact")
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_wrong_usage_is_an_error_that_says_what(tmp_path: Path) -> None:
    for verifier, args, message in (
        ("exakt", "{}", "did you mean 'exact'?"),
        ("exact", "{", "--args is not JSON"),
        ("exact", "[]", "--args must be a JSON object"),
        ("exact", '{"x": 1}', "takes no argument 'x'"),
    ):
        with pytest.raises(AssayError, match=message.replace("?", r"\?")):
            run(tmp_path, [GOOD], verifier, args)
    with pytest.raises(AssayError, match="is empty"):
        run(tmp_path, ["", " "], "exact")
    with pytest.raises(AssayError, match=f"there is no file {tmp_path / 'none.jsonl'}"):
        score(tmp_path / "none.jsonl", "exact")
