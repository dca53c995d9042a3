"""report.html: what a run did, on one page that needs no network, no script and no server."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.telemetry.metrics import METRICS, explain
from assay.telemetry.store import RunFolder, write_atomic
from assay.train.charts import CHART_STYLE, Bar, Interval, Point, bars_svg, curve_svg, escape, number_text

GROUPS_SHOWN = 10
LONG_TEXT = 700
SMOOTH_FROM = 30

CURVES: dict[str, tuple[str, str, bool]] = {
    "reward_mean": ("Reward", "mean reward", False),
    "component/": ("Reward components", "mean score", False),
    "correct_rate": ("Correct", "share of completions", True),
    "zero_variance_rate": ("Zero-variance groups", "share of groups", True),
    "kl_k3_mean": ("KL to the reference", "nats a token", False),
    "entropy": ("Entropy", "nats a token", False),
    "length_mean": ("Completion length", "tokens", False),
    "truncation_rate": ("Truncated", "share of completions", True),
    "clip_rate": ("Clipped tokens", "share of tokens", True),
    "explained_variance": ("What the critic knew", "explained variance", False),
    "explained_variance_early": ("What it knew in the first half", "explained variance", False),
    "beta": ("Weight of the KL", "beta", False),
    "dpo_accuracy": ("Pairs the right way round", "share of pairs", True),
    "dpo_margin": ("Margin of the pairs", "implicit reward", False),
    "dpo_reward/": ("Chosen and rejected completions", "mean implicit reward", False),
    "loss": ("Loss", "loss", False),
    "grad_norm": ("Gradient norm", "norm", False),
    "tokens_per_second": ("Speed", "tokens a second", False),
}
"""Metric (``component/`` is a family): title, y label, shown as per cent."""

PAGE_STYLE = """
:root{color-scheme:light dark;--ink:#1d2430;--soft:#5d6675;--paper:#f6f7f9;--card:#fff;--edge:#e1e5ea;--up:#0f7a52;
--down:#b3401a;--pos:42 111 219;--neg:217 98 43;--accent:#2a6fdb}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--soft:#9aa4b5;--paper:#0e1219;--card:#151a23;--edge:#272e3b;
--up:#4cc295;--down:#f0915f;--pos:106 163 245;--neg:240 145 95;--accent:#6aa3f5}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}main{max-width:1160px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:27px;line-height:1.25;margin:0 0 4px}h2{font-size:19px;margin:38px 0 10px}h3{font-size:15px;margin:0}
p{margin:6px 0}.soft{color:var(--soft)}small,.small{font-size:13px}nav a{color:var(--accent);margin-right:16px;
text-decoration:none}.card{background:var(--card);border:1px solid var(--edge);border-radius:10px;padding:16px 18px;
margin:12px 0;min-width:0}.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));
gap:14px}.grid .card{margin:0;display:flex;flex-direction:column}.grid .assay-chart{margin-top:auto}
.stack{display:grid;gap:14px}.stack .card{justify-content:center}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:14px;
margin:18px 0}.tiles .card{margin:0}.big{font-size:25px;font-weight:650;font-variant-numeric:tabular-nums}
.up{color:var(--up)}.down{color:var(--down)}.head{display:flex;justify-content:space-between;gap:12px}
.assay-chart{width:100%;height:auto;display:block}table{border-collapse:collapse;width:100%;
font-variant-numeric:tabular-nums}th{text-align:left;font-weight:600;color:var(--soft);font-size:13px}
td,th{padding:7px 10px;border-bottom:1px solid var(--edge);vertical-align:top}tr:last-child td{border-bottom:0}
.n{text-align:right;white-space:nowrap}.scroll{overflow-x:auto}pre{margin:0;white-space:pre-wrap;
overflow-wrap:anywhere;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,monospace}
summary{cursor:pointer;color:var(--soft)}
.prompt{border-left:3px solid var(--edge);padding:2px 0 2px 12px;margin:10px 0}.a{border-left:4px solid transparent}
.pos{background:rgb(var(--pos)/calc(var(--w)*.2));border-left-color:rgb(var(--pos)/var(--w))}
.neg{background:rgb(var(--neg)/calc(var(--w)*.2));border-left-color:rgb(var(--neg)/var(--w))}
.done{min-width:280px;width:60%}.tag{border:1px solid var(--edge);border-radius:99px;padding:1px 9px;font-size:12px;
color:var(--soft);white-space:nowrap}
"""


def write_report(run: Path) -> Path:
    """Write ``report.html`` of a run, finished or not, and give its path.

    What the run has not measured yet is said in a sentence. Raises CheckpointError for a folder that is no run.
    """
    folder = RunFolder(run)
    records = folder.read_metrics()
    evaluation = folder.read_evaluation()
    settings_text = folder.config.read_text(encoding="utf-8")
    settings = _settings(settings_text)
    sections = [
        _headline(settings, records, run),
        _held_out(evaluation),
        _curves(records),
        _groups(folder),
        _about(settings_text, folder.read_environment()),
    ]
    title = escape(str(settings.get("name", run.absolute().name)))
    page = (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>'
        f"{title} · assay</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Completions are hostile text: even if an escape were missed, nothing could run or be fetched.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{PAGE_STYLE}{CHART_STYLE}</style></head><body><main>{''.join(sections)}</main></body></html>\n"
    )
    write_atomic(folder.report, page.encode("utf-8", "backslashreplace"))
    return folder.report


def _headline(settings: Mapping[str, Any], records: Sequence[Mapping[str, Any]], run: Path) -> str:
    def at(table: str, key: str) -> str:
        return escape(str(settings.get(table, {}).get(key, "?")))

    name = escape(str(settings.get("name", run.absolute().name)))
    how = at("algorithm", "preset")
    if records and not any("reward_mean" in r for r in records):
        how = "preference pairs (DPO)" if any("dpo_margin" in r for r in records) else "supervised"
    steps = records[-1].get("step", len(records)) if records else 0
    hours = _duration(sum(_number(r.get("seconds")) or 0.0 for r in records))
    done = f"{steps} of {at('train', 'steps')} steps" + (f" in {hours}" if records else "")
    return (
        f"<header><h1>{name}</h1><p class=soft>{at('model', 'name')} · {how} · {at('data', 'train')} · {done}</p>"
        '<nav class=small><a href="#result">Result</a><a href="#curves">Curves</a><a href="#groups">Completions</a>'
        '<a href="#settings">Settings</a></nav></header>'
    )


def _held_out(evaluation: Mapping[str, Any]) -> str:
    before, after = evaluation.get("before"), evaluation.get("after")
    during = evaluation.get("during") or []
    head = "<section id=result><h2>Held-out result</h2>"
    if not before and not after and not during:
        why = "No held-out evaluation yet: the recipe names no data.eval, or none has run."
        return f"{head}<div class=card>{why}</div></section>"
    stages = [*([("before", before)] if before else []), *([("after", after)] if after else [])]
    first = before or after or during[0]
    what = (
        f"<p class=soft>{escape(str(first.get('data', '?')))}: {_count(first)} prompts that training never sees. "
        "Brackets are 95% intervals over prompts.</p>"
    )
    missing = [n for n, e in (("before", before), ("after", after)) if not e]
    note = f"<p>Not measured yet: {' and '.join(missing)} training.</p>" if missing else ""
    tiles = "".join(_tile(kind, before, after) for kind in ("sampled", "greedy")) if before and after else ""
    curve = _during(before, during, after)
    above, beside = (f"<div class=tiles>{tiles}</div>", curve) if curve else ("", f"<div class=stack>{tiles}</div>")
    return (
        f"{head}{what}{note}{above}<div class=grid>"
        f"<div class=card><h3>Correct, before and after</h3>{_bars(stages)}</div>{beside}</div>"
        f"<div class='card scroll'>{_result_table(before, during, after)}</div></section>"
    )


def _tile(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    old, new = _share(before, kind), _share(after, kind)
    if not (math.isfinite(old.value) and math.isfinite(new.value)):
        return ""
    change = 100 * (new.value - old.value)
    tone = "up" if change > 0 else "down" if change < 0 else ""
    apart = old.high < new.low or new.high < old.low
    word = "The intervals do not overlap." if apart else "The intervals overlap: this may be chance."
    return (
        f"<div class=card><div class=soft>correct, {kind}</div><div class=big>{100 * old.value:.1f}% → "
        f"{100 * new.value:.1f}%</div><div><b class={tone or 'soft'}>{change:+.1f} points</b> "
        f"<span class='soft small'>{word}</span></div></div>"
    )


def _bars(stages: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    bars = []
    for kind in ("sampled", "greedy"):
        for label, entry in stages:
            share = _share(entry, kind)
            colour = None if label == "before" else 0
            bars.append(Bar(f"{kind}, {label}", share.value, share.low, share.high, colour))
    return bars_svg(bars, title="held-out share correct with 95% intervals", y_label="share correct", inline=True)


def _during(
    before: Mapping[str, Any] | None, during: Sequence[Mapping[str, Any]], after: Mapping[str, Any] | None
) -> str:
    """The held-out curve, where there is more than the two ends."""
    entries = [e for e in (before, *during, after) if e]
    if not during or len(entries) < 2:
        return ""
    lines: dict[str, list[Point]] = {}
    whiskers: dict[str, list[Interval]] = {}
    for kind in ("sampled", "greedy"):
        shares = [(float(e.get("step", 0)), _share(e, kind)) for e in entries]
        lines[kind] = [(step, share.value) for step, share in shares]
        whiskers[kind] = [(step, share.low, share.high) for step, share in shares]
    chart = curve_svg(
        lines, title="held-out share correct", y_label="share correct", intervals=whiskers, percent=True, inline=True
    )
    return f"<div class=card><h3>Correct, during training</h3>{chart}</div>"


def _result_table(
    before: Mapping[str, Any] | None, during: Sequence[Mapping[str, Any]], after: Mapping[str, Any] | None
) -> str:
    named = [("before", before), *(("during", e) for e in during), ("after", after)]
    rows = []
    for label, entry in named:
        for kind in ("sampled", "greedy"):
            if entry and (result := entry.get(kind)):
                rows.append(_result_row(f"{label}, step {entry.get('step', '?')}", kind, entry, result))
    return (
        "<table><thead><tr><th>when<th>decoding<th class=n>correct<th class=n>mean reward<th class=n>length"
        f"<th class=n>truncated<th>components</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _result_row(label: str, kind: str, entry: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    share = _share(entry, kind)
    low, high = (_float(v) for v in (result.get("mean_reward_interval") or (None, None)))
    parts = ", ".join(
        f"{escape(str(name))} {number_text(_float(value))}" for name, value in (result.get("components") or {}).items()
    )
    return (
        f"<tr><td>{escape(label)}<td>{kind}<td class=n><b>{_percent(share.value)}</b> "
        f"<span class=soft>[{_percent(share.low)}, {_percent(share.high)}]</span>"
        f"<td class=n><b>{_fixed(_float(result.get('mean_reward')))}</b> "
        f"<span class=soft>[{_fixed(low)}, {_fixed(high)}]</span>"
        f"<td class=n>{number_text(round(_float(result.get('length_mean')), 1))}"
        f"<td class=n>{_percent(_float(result.get('truncation_rate')))}<td class=small>{parts or '–'}</tr>"
    )


def _curves(records: Sequence[Mapping[str, Any]]) -> str:
    head = "<section id=curves><h2>Curves</h2>"
    if not records:
        return f"{head}<div class=card>No step has been recorded yet.</div></section>"
    cards, missing = [], []
    for key, (title, y_label, percent) in CURVES.items():
        series = _series(records, key)
        if series:
            cards.append(_curve_card(key, title, y_label, percent, series))
        elif any(key in record for record in records):
            missing.append(title)
    smooth = _window(len(records))
    note = f" Faint: each step; strong: mean of the last {smooth}." if smooth > 1 else ""
    none = f"<p class='soft small'>Not measured in this run: {', '.join(missing)}.</p>" if missing else ""
    hint = f"<p class=soft>Hover over a point for its value.{note}</p>"
    return f"{head}{hint}<div class=grid>{''.join(cards)}</div>{none}</section>"


def _curve_card(key: str, title: str, y_label: str, percent: bool, series: Mapping[str, Sequence[Point]]) -> str:
    steps = max(len(points) for points in series.values())
    chart = curve_svg(series, title=title, y_label=y_label, percent=percent, smooth=_window(steps), inline=True)
    ends = [y for points in series.values() for _, y in points if math.isfinite(y)]
    latest = f"<b>{number_text(ends[0], percent)} → {number_text(ends[-1], percent)}</b>" if len(series) == 1 else ""
    sentence = explain(f"{key}<name>" if key.endswith("/") else key) or METRICS.get(key, "")
    return (
        f"<div class=card><div class=head><h3>{title}</h3><span>{latest}</span></div>"
        f"<p class='soft small'>{escape(sentence)}</p>{chart}</div>"
    )


def _series(records: Sequence[Mapping[str, Any]], key: str) -> dict[str, list[Point]]:
    """Lines with at least one number, by name; a step without one is a gap."""
    keys = sorted({k for r in records for k in r if k.startswith(key)}) if key.endswith("/") else [key]
    lines = {}
    for name in keys:
        points = [(float(r["step"]), _float(r.get(name))) for r in records if "step" in r]
        if any(math.isfinite(y) for _, y in points):
            lines[name.removeprefix(key) or name] = points
    return lines


def _window(steps: int) -> int:
    return max(5, steps // 15) if steps >= SMOOTH_FROM else 1


def _groups(folder: RunFolder) -> str:
    head = "<section id=groups><h2>Completions</h2>"
    steps = folder.rollout_steps()
    if not steps:
        return f"{head}<div class=card>No completions have been recorded.</div></section>"
    chosen = pick_groups(folder, steps, GROUPS_SHOWN)
    cards = "".join(_group_card(rows) for rows in chosen)
    return (
        f"{head}<p class=soft>{len(chosen)} groups from the first step to the last, chosen by position, not by result. "
        "Blue was reinforced (advantage above 0), orange discouraged; the stronger the colour, the more. No "
        "advantage is shown where the algorithm judges tokens and not completions.</p>"
        f"{cards}</section>"
    )


def pick_groups(folder: RunFolder, steps: Sequence[int], count: int) -> list[list[dict[str, Any]]]:
    """Up to ``count`` groups (as their rows) from steps spread evenly, at rotating places within their steps."""
    places = [steps[round(i * (len(steps) - 1) / max(count - 1, 1))] for i in range(count)]
    picked: list[list[dict[str, Any]]] = []
    for step in dict.fromkeys(places):
        groups: dict[int, list[dict[str, Any]]] = {}
        for row in folder.read_rollouts(step):
            groups.setdefault(row["group_id"], []).append(row)
        wanted, listed = places.count(step), list(groups.values())
        first = len(picked) % len(listed) if listed else 0
        picked += (listed[first:] + listed[:first])[:wanted]
    return picked


def _group_card(rows: Sequence[Mapping[str, Any]]) -> str:
    top = rows[0]
    largest = max((abs(_float(r["advantage"])) for r in rows if math.isfinite(_float(r["advantage"]))), default=0.0)
    body = "".join(_completion_row(row, largest) for row in rows)
    state = escape(str(top["group_state"]).replace("_", " "))
    return (
        f"<div class=card><div class=head><h3>Step {top['step']}, {escape(str(top['row_id']))}</h3>"
        f"<span class=tag>{state}</span></div>{_prompt(top['prompt'])}<div class=scroll><table><thead><tr>"
        "<th>completion<th class=n>reward<th class=n>advantage<th>status<th>reason</tr></thead>"
        f"<tbody>{body}</tbody></table></div></div>"
    )


def _completion_row(row: Mapping[str, Any], largest: float) -> str:
    advantage = _float(row["advantage"])
    strength = abs(advantage) / largest if largest > 0 and math.isfinite(advantage) else 0.0
    sign = "pos" if advantage > 0 else "neg" if advantage < 0 else ""
    cut = " <span class=tag>cut off</span>" if row["finish_reason"] == "length" else ""
    shown = f"{advantage:+.2f}".replace("-", "−") if sign else "0" if advantage == 0 else "–"
    return (
        f"<tr style='--w:{strength:.2f}'><td class='done a {sign}'>{_long(row['completion'])}"
        f"<td class=n>{_fixed(_float(row['reward']))}<td class=n>{shown}"
        f"<td>{escape(str(row['status']))}{cut}<td class=small>{escape(str(row['reason']))}</tr>"
    )


def _prompt(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """The last user message; all of the prompt behind a fold, where there is more."""
    if isinstance(prompt, str):
        return f"<div class=prompt>{_long(prompt)}</div>"
    users = [str(m.get("content", "")) for m in prompt if m.get("role") == "user"]
    last = users[-1] if users else ""
    whole = "".join(
        f"<p class='soft small'>{escape(str(m.get('role', '?')))}</p><pre>{escape(str(m.get('content', '')))}</pre>"
        for m in prompt
    )
    more = f"<details><summary class=small>whole prompt</summary>{whole}</details>" if len(prompt) > 1 else ""
    return f"<div class=prompt>{_long(last)}{more}</div>"


def _long(text: str) -> str:
    if not text:
        return "<span class=soft>(empty)</span>"
    if len(text) <= LONG_TEXT:
        return f"<pre>{escape(text)}</pre>"
    start, rest = text[:LONG_TEXT], text[LONG_TEXT:]
    return (
        f"<pre>{escape(start)}…</pre><details><summary class=small>{len(rest)} more characters</summary>"
        f"<pre>{escape(rest)}</pre></details>"
    )


def _about(settings_text: str, environment: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(str(key))}<td>{escape(value if isinstance(value, str) else json.dumps(value))}</tr>"
        for key, value in environment.items()
    )
    versions = f"<table><tbody>{rows}</tbody></table>" if rows else "<p>The run has not recorded its versions.</p>"
    return (
        "<section id=settings><h2>Settings and versions</h2><div class=grid><div class=card><h3>config.toml</h3>"
        f"<pre>{escape(settings_text)}</pre></div><div class=card><h3>environment.json</h3>{versions}</div></div>"
        "</section>"
    )


def _settings(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        # The text itself is on the page; a report of a run that was edited by hand is better than none.
        return {}


def _share(entry: Mapping[str, Any], kind: str) -> Bar:
    result = entry.get(kind) or {}
    low, high = (result.get("pass_at_interval") or {}).get("1") or (None, None)
    return Bar(kind, _float((result.get("pass_at") or {}).get("1")), _float(low), _float(high))


def _count(entry: Mapping[str, Any]) -> str:
    return str((entry.get("sampled") or entry.get("greedy") or {}).get("n", "?"))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _float(value: Any) -> float:
    """A number, or NaN for whatever is none."""
    number = _number(value)
    return math.nan if number is None else number


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%" if math.isfinite(value) else "–"


def _fixed(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "–"


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
