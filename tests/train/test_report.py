"""The report: complete, self-contained, safe with hostile completions, and never an exception over what is missing."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from assay.errors import CheckpointError
from assay.telemetry.metrics import METRICS, rollout_metrics
from assay.telemetry.sinks import MetricsFile, RolloutFiles
from assay.telemetry.store import RunFolder
from assay.train.report import pick_groups, write_report
from assay.types import Group, Row, Sample, Segment, Trajectory, Verdict

HOSTILE = "<script>alert('x')</script><img src=https://evil.example/a.png>\x1b"
CONFIG = """name = "orders <b>"
[model]
name = "smollm2-135m"
[data]
train = "builtin:orders"
[algorithm]
preset = "grpo"
[train]
steps = 12
"""
VOID = {"meta", "link", "img", "br"}
IMPLIED = {"td", "th", "p", "tr"}


class Page(HTMLParser):
    """What a browser would see: tags, text, and whether every element is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open[-1] != tag and self.open[-1] in IMPLIED:
            self.open.pop()
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def group(step: int, number: int, rewards: list[float], text: str = "an answer") -> Group:
    samples = tuple(
        Sample(
            Trajectory(i, 100 * step + number, (1,), (Segment((5, 2), True, (-0.5, -0.1), 0),), "length"),
            Row(f"row-{step}-{number}", ({"role": "system", "content": "sys"}, {"role": "user", "content": "ask"}), 1),
            text,
            Verdict(
                r, "crash" if math.isnan(r) else "ok", r > 0.5, HOSTILE, 1.0, {"fields": 0.0 if math.isnan(r) else r}
            ),
        )
        for i, r in enumerate(rewards)
    )
    advantages = tuple(0.0 if math.isnan(r) else r - 0.5 for r in rewards)
    return Group(100 * step + number, samples, advantages, "informative")


def result(share: float) -> dict[str, Any]:
    return {
        "n": 200,
        "pass_at": {"1": share},
        "pass_at_interval": {"1": [share - 0.05, share + 0.05]},
        "mean_reward": share,
        "mean_reward_interval": [share - 0.02, share + 0.02],
        "length_mean": 41.25,
        "truncation_rate": 0.015,
        "components": {"fields": 0.5},
    }


def evaluation(step: int, share: float) -> dict[str, Any]:
    return {
        "step": step,
        "data": "builtin:orders?split=heldout",
        "sampled": result(share),
        "greedy": result(share + 0.1),
    }


@pytest.fixture
def empty(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path)
    run.config.write_text(CONFIG)
    return run


@pytest.fixture
def whole(empty: RunFolder) -> RunFolder:
    for step in range(1, 13):
        groups = [group(step, n, [1.0, 0.0, math.nan], HOSTILE) for n in range(3)]
        RolloutFiles(empty.rollouts).write(step, groups)
        extra = {"entropy": 0.5, "kl_k3_mean": None, "grad_norm": 1.0, "tokens_per_second": 100.0, "seconds": 20.0}
        MetricsFile(empty.metrics).write({"step": step, **rollout_metrics(groups), **extra})
    empty.evaluation.write_text(json.dumps({"before": evaluation(0, 0.1), "after": evaluation(12, 0.6)}))
    empty.environment.write_text(json.dumps({"assay": "0.1.0", "torch": "2.13.0", "cpu_count": 2}))
    return empty


def page(run: RunFolder) -> tuple[str, Page]:
    path = write_report(run.path)
    assert path == run.report
    html = path.read_text(encoding="utf-8")
    return html, Page(html)


def test_the_page_is_well_formed_and_needs_nothing_from_outside(whole: RunFolder) -> None:
    html, seen = page(whole)
    assert seen.open == []
    assert not {"script", "link", "img", "iframe", "object"} & set(seen.tags)
    assert seen.links == ["#result", "#curves", "#groups", "#settings"]
    assert not re.search(r"@import|url\(", html)
    assert "http" not in html.replace("https://evil.example/a.png", "").replace("http-equiv", "")
    assert "default-src 'none'" in html
    assert "prefers-color-scheme:dark" in html


def test_hostile_text_is_text(whole: RunFolder) -> None:
    html, seen = page(whole)
    assert "<script>alert('x')</script><img src=https://evil.example/a.png>\\x1b" in seen.text
    assert "\x1b" not in html
    assert "<b>" not in html.split("<h1>")[1].split("</h1>")[0]


def test_the_headline_has_before_and_after(whole: RunFolder) -> None:
    _, seen = page(whole)
    assert "10.0% → 60.0%" in seen.text
    assert "+50.0 points" in seen.text
    assert "20.0% → 70.0%" in seen.text
    assert "The intervals do not overlap." in seen.text
    assert "10.0% [5.0%, 15.0%]" in seen.text
    assert "200 prompts that training never sees" in seen.text
    assert "smollm2-135m · grpo · builtin:orders · 12 of 12 steps in 4 min" in seen.text


def test_overlapping_intervals_are_not_sold_as_progress(whole: RunFolder) -> None:
    whole.evaluation.write_text(json.dumps({"before": evaluation(0, 0.50), "after": evaluation(12, 0.53)}))
    _, seen = page(whole)
    assert "The intervals overlap: this may be chance." in seen.text
    assert "do not overlap" not in seen.text


def test_each_curve_has_its_sentence(whole: RunFolder) -> None:
    _, seen = page(whole)
    for key in ("reward_mean", "component/<name>", "correct_rate", "zero_variance_rate", "entropy", "grad_norm"):
        assert METRICS[key] in seen.text, key
    assert METRICS["kl_k3_mean"] not in seen.text
    assert "Not measured in this run: KL to the reference." in seen.text


def test_what_a_run_did_is_told_from_its_records(empty: RunFolder) -> None:
    MetricsFile(empty.metrics).write({"step": 1, "loss": 0.7})
    assert "smollm2-135m · supervised · builtin:orders · 1 of 12 steps" in page(empty)[1].text
    pairs = {"dpo_accuracy": 0.75, "dpo_margin": 0.5, "dpo_reward/chosen": 0.25, "dpo_reward/rejected": -0.25}
    MetricsFile(empty.metrics).write({"step": 2, "loss": 0.6, **pairs})
    _, seen = page(empty)
    assert "smollm2-135m · preference pairs (DPO) · builtin:orders · 2 of 12 steps" in seen.text
    for key in ("dpo_accuracy", "dpo_margin", "dpo_reward/<which>"):
        assert METRICS[key] in seen.text, key


def test_evaluations_during_training_make_a_curve(whole: RunFolder) -> None:
    known = whole.read_evaluation()
    whole.evaluation.write_text(json.dumps({**known, "during": [evaluation(5, 0.3)]}))
    _, seen = page(whole)
    assert "Correct, during training" in seen.text
    assert "during, step 5" in seen.text


def test_ten_groups_from_first_to_last(whole: RunFolder) -> None:
    _, seen = page(whole)
    headings = [int(step) for step in re.findall(r"Step (\d+), row-", seen.text)]
    assert len(headings) == 10
    assert headings == sorted(set(headings))
    assert (headings[0], headings[-1]) == (1, 12)


def test_few_steps_give_several_groups_each_and_places_rotate(empty: RunFolder) -> None:
    for step in (1, 2):
        RolloutFiles(empty.rollouts).write(step, [group(step, n, [1.0, 0.0]) for n in range(8)])
    picked = pick_groups(empty, empty.rollout_steps(), 10)
    numbers = [rows[0]["group_id"] for rows in picked]
    assert numbers == [100, 101, 102, 103, 104, 205, 206, 207, 200, 201]


def test_colour_follows_the_advantage(empty: RunFolder) -> None:
    RolloutFiles(empty.rollouts).write(1, [group(1, 0, [1.0, 0.25, math.nan])])
    html, _ = page(empty)
    rows = re.findall(r"<tr style='--w:([\d.]+)'><td class='done a ?(\w*)", html)
    assert rows == [("1.00", "pos"), ("0.50", "neg"), ("0.00", "")]


def test_a_run_that_has_only_begun_says_so(empty: RunFolder) -> None:
    _, seen = page(empty)
    assert "No held-out evaluation yet" in seen.text
    assert "No step has been recorded yet." in seen.text
    assert "No completions have been recorded." in seen.text
    assert "has not recorded its versions" in seen.text
    assert "0 of 12 steps" in seen.text


def test_an_evaluation_before_alone_says_what_is_missing(empty: RunFolder) -> None:
    empty.evaluation.write_text(json.dumps({"before": evaluation(0, 0.1)}))
    _, seen = page(empty)
    assert "Not measured yet: after training." in seen.text
    assert "10.0%" in seen.text


def test_odd_numbers_do_not_break_it(empty: RunFolder) -> None:
    nothing = {"n": 0, "pass_at": {"1": math.nan}, "pass_at_interval": {"1": [0.0, 1.0]}, "mean_reward": math.nan}
    entry = {"step": 0, "data": "d", "sampled": nothing, "greedy": {}}
    empty.evaluation.write_text(json.dumps({"before": entry, "during": [entry], "after": entry}))
    empty.metrics.write_text('{"step": 1, "reward_mean": null}\n{"step": 2, "loss": 1.5}\n{"st')
    _, seen = page(empty)
    assert "1.5" in seen.text
    assert "nan" not in seen.text.lower()


def test_settings_that_are_no_toml_any_more_are_still_shown(empty: RunFolder) -> None:
    empty.config.write_text("name = <oops>")
    _, seen = page(empty)
    assert "name = <oops>" in seen.text


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no run"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []
