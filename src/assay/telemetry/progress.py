"""What a person watching a run sees: one line a step, a sample now and then, held-out results.

On a terminal (rich) there is also a moving line for where the step is; elsewhere plain lines, few enough for a
log file. Nothing here may end a run: missing numbers show as a dash, and model text is shown with its control
characters made visible.
"""

from __future__ import annotations

import math
import statistics
import time
import unicodedata
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from assay.types import Sample

SAMPLE_EVERY = 5
PLAIN_PHASE_SECONDS = 15.0
SAMPLE_CHARACTERS = 600
PROMPT_CHARACTERS = 160
SPARKLINE_STEPS = 12
MISSING = "–"
BARS = "▁▂▃▄▅▆▇█"
HIDDEN = set("\ufffe\uffff\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Progress:
    """Shows a run of ``total_steps``. Use as a context manager, so that the terminal is always given back."""

    def __init__(self, total_steps: int, console: Console | None = None) -> None:
        self._total = total_steps
        self._console = console or Console(highlight=False, emoji=False)
        self._rich = self._console.is_terminal and self._console.encoding.lower().startswith("utf")
        self._rewards: list[float] = []
        self._seconds: list[float] = []
        self._steps_shown = 0
        self._live: Live | None = None
        # One spinner for the whole run: a new one with every update would never turn.
        self._spinner = Spinner("dots", style="cyan")
        self._spoke = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()

    def note(self, text: str) -> None:
        """A line for the person, as it is."""
        self._print(Text(visible(text)))

    def phase(self, label: str, done: int, total: int) -> None:
        """Where the step is, for the moment; on no terminal, a line at most every 15 seconds."""
        label = visible(label)
        if self._rich:
            self._show(label, done, total)
            return
        now = time.monotonic()
        if now - self._spoke >= PLAIN_PHASE_SECONDS:
            self._spoke = now
            self._print(Text(f"  {label} {done}/{total}"))

    def step(self, record: Mapping[str, Any], sample: Sample | None) -> None:
        """One line for a step's record; every few steps ``sample`` as well."""
        self._clear()
        self._steps_shown += 1
        number = _number(record.get("step"))
        seconds = _number(record.get("seconds"))
        if seconds is not None:
            self._seconds.append(seconds)
        width = self._console.width if self._rich else None
        self._print(fit(self._fields(record, number), width))
        reward = _number(record.get("reward_mean"))
        if reward is not None:
            self._rewards.append(reward)
        due = self._steps_shown == 1 or (number is not None and number % SAMPLE_EVERY == 0)
        if sample is not None and due:
            self._print(sample_panel(sample) if self._rich else sample_line(sample))
        self._spoke = time.monotonic()

    def evaluation(self, label: str, result: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        """Held-out shares correct with their 95 % intervals, and how far they moved since ``before``."""
        self._clear()
        line = Text(f"{visible(label)}:", style="bold")
        for kind in ("sampled", "greedy"):
            part = result.get(kind) or {}
            earlier = _share((before or {}).get(kind) or {})
            line.append(f"  {kind} ", style="not bold")
            line.append_text(_result_text(part, earlier))
        self._print(line)

    def _fields(self, record: Mapping[str, Any], number: float | None) -> list[tuple[int, Text]]:
        """The step's line as (how soon it may be left out for want of room, text); 0 stays."""
        digits = len(str(self._total))
        kl = _number(record.get("kl_k3_mean"))
        fields = [(0, Text(f"step {_shown(number, f'{digits}.0f')}/{self._total}", style="bold"))]
        if "reward_mean" in record:
            fields.append((0, self._reward(_number(record["reward_mean"]))))
            trend = sparkline([*self._rewards, _number(record["reward_mean"])])
            fields.append((4, Text(trend.ljust(min(SPARKLINE_STEPS, self._total)), style="cyan")))
            fields.append((0, _labelled("correct", _percent(record.get("correct_rate"), 4))))
            fields.append((2, _labelled("zero-var", _percent(record.get("zero_variance_rate"), 4))))
            fields.append((5 if kl is None else 3, _labelled("KL", _shown(kl, ".4f"))))
            fields.append((4, _labelled("len", _shown(_number(record.get("length_mean")), "3.0f"))))
        elif "loss" in record:
            fields.append((0, _labelled("loss", _shown(_number(record["loss"]), "6.4f"))))
        if "dpo_accuracy" in record:
            fields.append((0, _labelled("pairs right", _percent(record["dpo_accuracy"], 4))))
            fields.append((2, _labelled("margin", _shown(_number(record.get("dpo_margin")), "6.3f"))))
        rate = _number(record.get("tokens_per_second"))
        seconds = _number(record.get("seconds"))
        fields.append((3, Text(f"{_shown(rate, '.0f')} tok/s")))
        fields.append((1, Text(f"{_shown(seconds, '.1f')} s")))
        fields.append((0, _labelled("left", duration(self._left(number)))))
        return fields

    def _reward(self, reward: float | None) -> Text:
        text = _labelled("reward", _shown(reward, "5.2f"))
        if reward is None or not self._rewards:
            return text.append("  ")
        change = reward - statistics.fmean(self._rewards[-5:])
        arrow, style = ("▲", "green") if change > 0 else ("▼", "red") if change < 0 else ("=", "dim")
        return text.append(f" {arrow}", style=style)

    def _left(self, step: float | None) -> float | None:
        if step is None or not self._seconds:
            return None
        return statistics.median(self._seconds[-20:]) * max(self._total - step, 0)

    def _show(self, label: str, done: int, total: int) -> None:
        line = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(total, 1), completed=done, width=24)
        line.add_row("  ", self._spinner, Text(label), bar, Text(f"{done}/{total}"))
        if self._live is None:
            self._live = Live(line, console=self._console, transient=True, refresh_per_second=5)
            self._live.start()
        else:
            self._live.update(line)

    def _clear(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, shown: RenderableType) -> None:
        if self._rich or not isinstance(shown, Text):
            self._console.print(shown)
            return
        # A pipe may have any encoding, and a long line belongs to whoever reads it: neither wrapped nor cropped.
        encoding = self._console.encoding
        plain = shown.plain.encode(encoding, "replace").decode(encoding)
        self._console.print(Text(plain), soft_wrap=True)


def visible(text: str) -> str:
    """Text with control characters, direction overrides and lone surrogates as escapes; newline and tab stay."""
    return "".join(_escaped(c) if _is_hidden(c) else c for c in text)


def sparkline(values: list[float | None], steps: int = SPARKLINE_STEPS) -> str:
    """The last values as one bar each, from their own least to their own greatest; None is left out."""
    known = [v for v in values if v is not None][-steps:]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    if high == low:
        return BARS[3] * len(known)
    return "".join(BARS[round((v - low) / (high - low) * (len(BARS) - 1))] for v in known)


def duration(seconds: float | None) -> str:
    """2:43, or 1:02:43 from an hour on."""
    if seconds is None:
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def fit(fields: list[tuple[int, Text]], width: int | None) -> Text:
    """Join fields by two spaces; those of the highest rank go first while the line is too long."""
    kept = [(rank, text) for rank, text in fields if text.plain]
    while width is not None and sum(text.cell_len + 2 for _, text in kept) - 2 > width:
        worst = max(rank for rank, _ in kept)
        if worst == 0:
            break
        kept.remove(next(field for field in reversed(kept) if field[0] == worst))
    return Text("  ").join(text for _, text in kept)


def sample_panel(sample: Sample) -> Panel:
    """A completion with its reward, for a terminal."""
    prompt = Text(_shortened(visible(_last_message(sample)), PROMPT_CHARACTERS), style="dim")
    completion = Text(_shortened(visible(sample.text), SAMPLE_CHARACTERS))
    colour = "green" if sample.verdict.correct else "yellow"
    title = Text(f"sample · {_verdict(sample)}", style=colour)
    return Panel(Group(prompt, completion), title=title, title_align="left", border_style="dim", expand=True)


def sample_line(sample: Sample) -> Text:
    """A completion with its reward in one indented line."""
    text = _shortened(visible(sample.text), SAMPLE_CHARACTERS).replace("\n", "\\n")
    return Text(f"    sample, {_verdict(sample)}: {text}")


def _verdict(sample: Sample) -> str:
    verdict = sample.verdict
    reason = _shortened(visible(verdict.reason), 80).replace("\n", " ")
    shown = f"reward {_shown(_number(verdict.reward), '.2f')} · {verdict.status}"
    return f"{shown} · {reason}" if reason else shown


def _last_message(sample: Sample) -> str:
    prompt = sample.row.prompt
    if isinstance(prompt, str):
        return prompt
    users = [m.get("content") or "" for m in prompt if m.get("role") == "user"]
    return users[-1] if users else ""


def _result_text(result: Mapping[str, Any], before: float | None) -> Text:
    share = _share(result)
    text = Text(_percent(share).strip(), style="bold")
    ends = (result.get("pass_at_interval") or {}).get("1") or (None, None)
    low, high = _number(ends[0]), _number(ends[1])
    if low is not None and high is not None:
        text.append(f" [{100 * low:.1f}, {100 * high:.1f}]", style="not bold")
    if share is not None and before is not None:
        change = 100 * (share - before)
        style = "green" if change > 0 else "red" if change < 0 else ""
        text.append(f" ({change:+.1f} points)", style=f"not bold {style}")
    return text.append(f" reward {_shown(_number(result.get('mean_reward')), '.3f')}", style="not bold")


def _share(result: Mapping[str, Any]) -> float | None:
    return _number((result.get("pass_at") or {}).get("1"))


def _labelled(label: str, value: str) -> Text:
    return Text.assemble((f"{label} ", "dim"), value)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _shown(value: float | None, spec: str) -> str:
    return MISSING if value is None else format(value, spec)


def _percent(value: Any, width: int = 0) -> str:
    number = _number(value)
    return (MISSING if number is None else f"{100 * number:.{0 if width else 1}f}%").rjust(width)


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _is_hidden(character: str) -> bool:
    if character in "\n\t":
        return False
    return character in HIDDEN or unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
