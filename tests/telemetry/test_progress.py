"""What is shown: the promised line, no crash on anything, no control over the terminal for model text."""

from __future__ import annotations

import io
import math
import re
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from assay.telemetry import progress as progress_module
from assay.telemetry.progress import Progress, duration, fit, sparkline, visible
from assay.types import Row, Sample, Segment, Trajectory, Verdict

RECORD = {
    "step": 7,
    "reward_mean": 0.83,
    "correct_rate": 0.61,
    "zero_variance_rate": 0.25,
    "kl_k3_mean": None,
    "length_mean": 42.2,
    "tokens_per_second": 210.4,
    "seconds": 18.3,
}
HOSTILE = "[/bold] [red]x[/] \x1b[2J\x07\r \u202e \ud800 :smile:"
SHOWN = r"[/bold] [red]x[/] \x1b[2J\x07\x0d \u202e \ud800 :smile:"


def sample(text: str, prompt: Any = "p", reward: float = 0.5) -> Sample:
    trajectory = Trajectory(0, 0, (1,), (Segment((5,), True, (-0.5,), 0),), "stop")
    return Sample(trajectory, Row("r", prompt, 1), text, Verdict(reward, "wrong", False, HOSTILE))


def plain(total: int = 16) -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    return Progress(total, Console(file=out, width=200)), out


def terminal(width: int = 140) -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    return Progress(16, Console(file=out, width=width, force_terminal=True, color_system=None)), out


def test_the_line_of_a_step() -> None:
    progress, out = plain()
    progress.step({**RECORD, "step": 6, "reward_mean": 0.5}, None)
    progress.step(RECORD, None)
    assert re.sub(" +", " ", out.getvalue().splitlines()[1]) == (
        "step 7/16 reward 0.83 ▲ ▁█ correct 61% zero-var 25% KL – len 42 210 tok/s 18.3 s left 2:45"
    )


def test_time_left_is_from_the_median_step() -> None:
    progress, out = plain(10)
    for step, seconds in enumerate([100.0, 2.0, 3.0, 2.5], start=1):
        progress.step({"step": step, "seconds": seconds}, None)
    assert out.getvalue().splitlines()[-1].endswith("left 0:16")  # 6 steps of 2.75 s


def test_supervised_steps_show_their_loss() -> None:
    progress, out = plain()
    progress.step({"step": 1, "loss": 1.23456, "seconds": 1.0, "tokens_per_second": 10.0}, None)
    assert "loss 1.2346" in out.getvalue()
    assert "reward" not in out.getvalue()


def test_steps_on_pairs_show_how_many_are_the_right_way_round() -> None:
    progress, out = plain()
    record = {"step": 1, "loss": 0.5, "dpo_accuracy": 0.75, "dpo_margin": 0.25, "seconds": 1.0}
    progress.step({**record, "tokens_per_second": 10.0}, None)
    assert "loss 0.5000  pairs right  75%  margin  0.250  10 tok/s" in out.getvalue()


@pytest.mark.parametrize("make", [plain, terminal])
def test_nothing_missing_or_odd_raises(make: Any) -> None:
    progress, out = make()
    with progress:
        progress.note(HOSTILE)
        progress.phase(HOSTILE, 1, 0)
        progress.step({}, None)
        progress.step(dict.fromkeys(RECORD), sample(HOSTILE, reward=math.nan))
        progress.step(dict.fromkeys(RECORD, math.nan), sample("", ()))
        progress.step({**RECORD, "step": 5, "reward_mean": "?"}, sample("x", ({"role": "system", "content": "s"},)))
        progress.evaluation(HOSTILE, {})
        progress.evaluation("after", {"sampled": {"pass_at": {"1": math.nan}}, "greedy": None})
    assert "step" in out.getvalue()


@pytest.mark.parametrize("make", [plain, terminal])
def test_model_text_is_shown_as_it_is_and_commands_nothing(make: Any) -> None:
    progress, out = make()
    progress.step({**RECORD, "step": 1}, sample(HOSTILE, ({"role": "user", "content": HOSTILE},)))
    progress.note(HOSTILE)
    shown = out.getvalue()
    assert shown.count(SHOWN) >= 3  # completion, reason and note
    assert not set("\x1b\x07\r\u202e") & set(shown)


def test_a_sample_is_shown_at_the_first_step_and_each_fifth() -> None:
    progress, out = plain()
    for step in range(3, 12):
        progress.step({**RECORD, "step": step}, sample(f"completion of {step}\nsecond line"))
    assert re.findall(r"completion of (\d+)", out.getvalue()) == ["3", "5", "10"]
    assert "completion of 3\\nsecond line" in out.getvalue()


def test_a_narrow_terminal_keeps_one_line_a_step() -> None:
    progress, out = terminal(width=70)
    for step in range(2, 5):
        progress.step({**RECORD, "step": step}, None)
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert all(len(line) <= 70 and "reward" in line and "left" in line for line in lines)


def test_fields_go_by_rank_and_rank_zero_stays() -> None:
    fields = [(0, Text("aaaa")), (2, Text("bbbb")), (1, Text("cccc")), (2, Text("dddd")), (0, Text(""))]
    assert fit(fields, None).plain == "aaaa  bbbb  cccc  dddd"
    assert fit(fields, 16).plain == "aaaa  bbbb  cccc"
    assert fit(fields, 15).plain == "aaaa  cccc"
    assert fit(fields, 1).plain == "aaaa"


def test_off_a_terminal_phases_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    progress, out = plain()
    for second in range(0, 41):
        now[0] = float(second)
        progress.phase("rollout", second, 40)
    assert out.getvalue() == "  rollout 15/40\n  rollout 30/40\n"


def test_on_a_terminal_phases_leave_with_the_context() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system="standard")
    with Progress(16, console) as progress:
        progress.phase("rollout", 3, 32)
    assert "rollout" in out.getvalue()
    assert "3/32" in out.getvalue()
    assert out.getvalue().rstrip().endswith("\x1b[2K")  # the line is erased
    assert "\x1b[?25h" in out.getvalue()  # the cursor is back


def test_evaluation_shows_both_with_intervals_and_the_change() -> None:
    def result(share: float) -> dict[str, Any]:
        one = {"pass_at": {"1": share}, "pass_at_interval": {"1": [share - 0.05, share + 0.05]}, "mean_reward": 0.5}
        return {"sampled": one, "greedy": one}

    progress, out = plain()
    progress.evaluation("held-out, before", result(0.125))
    progress.evaluation("held-out, after", result(0.61), result(0.125))
    before, after = out.getvalue().splitlines()
    assert before.startswith("held-out, before:  sampled 12.5% [7.5, 17.5] reward 0.500  greedy 12.5%")
    assert after.startswith("held-out, after:  sampled 61.0% [56.0, 66.0] (+48.5 points) reward 0.500")


def test_an_encoding_without_the_characters_does_not_end_the_run() -> None:
    raw = io.BytesIO()
    progress = Progress(16, Console(file=io.TextIOWrapper(raw, encoding="ascii"), width=200))
    progress.step(RECORD, sample("Kraków"))
    progress.note("→")
    assert b"step" in raw.getvalue()
    assert b"Krak?w" in raw.getvalue()


def test_visible_keeps_what_people_write() -> None:
    ordinary = "a\tb\nŁódź 中文 👩‍💻 \u200f"
    assert visible(ordinary) == ordinary
    assert visible("\x00\x85\u2028\uffff") == r"\x00\x85\u2028\uffff"


def test_sparkline_and_duration() -> None:
    assert sparkline([0.0, None, 1.0, 0.5]) == "▁█▅"
    assert sparkline([1.0, 1.0]) == "▄▄"
    assert sparkline([1.0]) == ""
    assert len(sparkline([float(i) for i in range(50)])) == 12
    assert [duration(s) for s in (None, 0.4, 163, 3763)] == ["–", "0:00", "2:43", "1:02:43"]
