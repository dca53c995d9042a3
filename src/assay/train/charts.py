"""Small charts as SVG text, written by hand so that a report needs no library, no script and no network.

Colours come from CSS variables. A standalone picture carries them itself, light and dark; inside the report the
page does (``inline=True``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape as escape_html

from assay.telemetry.progress import visible

Point = tuple[float, float]
Interval = tuple[float, float, float]
"""x, low, high."""

LEFT, RIGHT, TOP, BOTTOM = 58.0, 18.0, 34.0, 44.0
MAX_HOVER_POINTS = 250
COLOURS = 6

CHART_STYLE = """
.assay-chart{--ink:#1d2430;--soft:#667085;--grid:#e4e7ec;--paper:#fff;--s0:#2a6fdb;--s1:#d9622b;--s2:#178f63;
--s3:#a8790b;--s4:#c2447d;--s5:#6a55c2;--muted:#98a2b3;font:12px system-ui,-apple-system,"Segoe UI",sans-serif}
@media(prefers-color-scheme:dark){.assay-chart{--ink:#e6e9ef;--soft:#98a2b3;--grid:#2b3240;--paper:#151a23;
--s0:#6aa3f5;--s1:#f0915f;--s2:#4cc295;--s3:#d9ae48;--s4:#ea86b1;--s5:#a596f0;--muted:#667085}}
.assay-chart text{fill:var(--soft)}.assay-chart .title{fill:var(--ink);font-weight:600;font-size:14px}
.assay-chart .value{fill:var(--ink);font-weight:600}.assay-chart .grid{stroke:var(--grid);stroke-width:1}
.assay-chart .axis{stroke:var(--muted);stroke-width:1}.assay-chart .line{fill:none;stroke-width:2.2;
stroke-linejoin:round;stroke-linecap:round}.assay-chart .faint{opacity:.35;stroke-width:1.2}
.assay-chart .hover{fill:transparent;stroke:none}.assay-chart .hover:hover{fill:var(--muted);fill-opacity:.35}
.assay-chart .whisker{stroke-width:1.5;opacity:.8}.assay-chart .bar-whisker{stroke:var(--ink);stroke-width:1.5}
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its value and the ends of its interval."""

    label: str
    value: float
    low: float
    high: float
    colour: int | None = 0
    """Number of a series colour; None for the muted one."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The plotting area: data ranges and where they lie in the picture."""

    width: float
    height: float
    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, value: float) -> float:
        """Horizontal position of a data value."""
        return LEFT + (value - self.x0) / (self.x1 - self.x0) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Vertical position of a data value."""
        return self.height - BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (self.height - TOP - BOTTOM)


def curve_svg(
    series: Mapping[str, Sequence[Point]],
    *,
    title: str,
    y_label: str,
    x_label: str = "step",
    intervals: Mapping[str, Sequence[Interval]] | None = None,
    y_range: tuple[float, float] | None = None,
    percent: bool = False,
    smooth: int = 1,
    width: int = 560,
    height: int = 260,
    inline: bool = False,
) -> str:
    """Line chart of named series of (x, y) as an SVG.

    A y of NaN is a gap in its line. ``intervals`` adds whiskers to a series. ``percent`` shows shares as per cent.
    With ``smooth`` > 1 the data are faint and the mean of the last ``smooth`` points is drawn over them. Without
    one finite point the picture says so.
    """
    size = (width, height)
    whiskers = intervals or {}
    frame = _frame(series, whiskers, y_range, width, height)
    if frame is None:
        return _svg(size, title, [_text(width / 2, height / 2, "nothing measured", "middle")], inline=inline)
    body = _axes(frame, x_label, y_label, percent)
    for number, (name, points) in enumerate(series.items()):
        body += _whiskers(frame, whiskers.get(name, ()), number)
        body += _series(frame, name, points, number, smooth=smooth, percent=percent)
    if len(series) > 1:
        body += _legend(list(series), width)
    return _svg(size, title, body, inline=inline, legend=len(series) > 1)


def bars_svg(
    bars: Sequence[Bar], *, title: str, y_label: str, width: int = 560, height: int = 260, inline: bool = False
) -> str:
    """Bars of shares between 0 and 1, each with its interval as a whisker and its value above."""
    top = max([b.high for b in bars if math.isfinite(b.high)], default=1.0)
    frame = Frame(width, height, 0.0, max(len(bars), 1), 0.0, min(1.0, _ceiling(1.12 * top)) if top > 0 else 1.0)
    body = _y_axis(frame, y_label, percent=True)
    for number, bar in enumerate(bars):
        body += _bar(frame, number, bar)
    if not bars:
        body.append(_text(width / 2, height / 2, "nothing measured", "middle"))
    return _svg((width, height), title, body, inline=inline)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) within [low, high], about ``count`` of them."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(m for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def trailing_mean(points: Sequence[Point], window: int) -> list[Point]:
    """Each y replaced by the mean of the last ``window`` finite ones up to it; points without a y are left out."""
    known = [(x, y) for x, y in points if math.isfinite(y)]
    means = []
    for i, (x, _) in enumerate(known):
        recent = [y for _, y in known[max(0, i - window + 1) : i + 1]]
        means.append((x, math.fsum(recent) / len(recent)))
    return means


def number_text(value: float, percent: bool = False) -> str:
    """A short number for people, of three digits: 12.5%, 417, 12.3k, 0.034, 2e-05; an en dash for NaN."""
    if not math.isfinite(value):
        return "–"
    if percent:
        return f"{number_text(100 * value)}%"
    size = abs(value)
    if 1e4 <= size < 1e6:
        return f"{value / 1000:.3g}k"
    return f"{value:.0f}" if 100 <= size < 1e4 else f"{value:.3g}"


def _frame(
    series: Mapping[str, Sequence[Point]],
    whiskers: Mapping[str, Sequence[Interval]],
    y_range: tuple[float, float] | None,
    width: float,
    height: float,
) -> Frame | None:
    points = [(x, y) for line in series.values() for x, y in line if math.isfinite(x) and math.isfinite(y)]
    if not points:
        return None
    ends = [y for line in whiskers.values() for _, *both in line for y in both if math.isfinite(y)]
    xs, ys = [x for x, _ in points], [y for _, y in points] + ends
    x0, x1 = min(xs), max(xs)
    y0, y1 = y_range or _padded(min(ys), max(ys))
    return Frame(width, height, x0, x1, y0, y1) if x1 > x0 else Frame(width, height, x0 - 1, x1 + 1, y0, y1)


def _padded(low: float, high: float) -> tuple[float, float]:
    if low == high:
        room = abs(low) * 0.1 or 1.0
        return (low if low == 0 else low - room, high + room)
    room = 0.06 * (high - low)
    # A quantity that is never negative should not be given a negative axis.
    return (max(low - room, 0.0) if low >= 0 else low - room, high + room)


def _ceiling(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return math.ceil(value / power * 2 - 1e-9) / 2 * power


def _axes(frame: Frame, x_label: str, y_label: str, percent: bool) -> list[str]:
    body = _y_axis(frame, y_label, percent)
    bottom = frame.height - BOTTOM
    for value in ticks(frame.x0, frame.x1, 8):
        if value == round(value):
            body.append(_text(frame.x(value), bottom + 18, number_text(value), "middle"))
            body.append(_line(frame.x(value), bottom, frame.x(value), bottom + 4, "axis"))
    body.append(_text((LEFT + frame.width - RIGHT) / 2, frame.height - 8, x_label, "middle"))
    return body


def _y_axis(frame: Frame, y_label: str, percent: bool) -> list[str]:
    body, right = [], frame.width - RIGHT
    for value in ticks(frame.y0, frame.y1, 6):
        body.append(_line(LEFT, frame.y(value), right, frame.y(value), "grid"))
        body.append(_text(LEFT - 8, frame.y(value) + 4, number_text(value, percent), "end"))
    body.append(_line(LEFT, frame.height - BOTTOM, right, frame.height - BOTTOM, "axis"))
    middle = (TOP + frame.height - BOTTOM) / 2
    body.append(
        f'<text x="14" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 14 {middle:.1f})">'
        f"{escape(y_label)}</text>"
    )
    return body


def _series(frame: Frame, name: str, points: Sequence[Point], number: int, *, smooth: int, percent: bool) -> list[str]:
    body = []
    smoothed = smooth > 1
    for run in _runs(points):
        body += _stroke(frame, run, number, "line faint" if smoothed else "line")
    if smoothed:
        body += _stroke(frame, trailing_mean(points, smooth), number, "line")
    known = [(x, y) for x, y in points if math.isfinite(y)]
    every = math.ceil(len(known) / MAX_HOVER_POINTS) or 1
    few = len(known) <= 40 and not smoothed
    for x, y in known[::every]:
        where = f'cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}"'
        if few:
            body.append(f'<circle {where} r="2.6" fill="{_colour(number)}"/>')
        label = escape(f"{name}: {number_text(y, percent)} at {number_text(x)}")
        body.append(f'<circle class="hover" {where} r="8"><title>{label}</title></circle>')
    return body


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """The stretches between gaps."""
    runs: list[list[Point]] = [[]]
    for x, y in points:
        if math.isfinite(y):
            runs[-1].append((x, y))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _stroke(frame: Frame, points: Sequence[Point], number: int, kind: str) -> list[str]:
    if len(points) < 2:
        return []
    path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points)
    return [f'<polyline class="{kind}" points="{path}" stroke="{_colour(number)}"{_dash(number)}/>']


def _whiskers(frame: Frame, intervals: Sequence[Interval], number: int) -> list[str]:
    body = []
    for x, low, high in intervals:
        if math.isfinite(low) and math.isfinite(high):
            body += _whisker(frame.x(x), frame.y(low), frame.y(high), "whisker", f' stroke="{_colour(number)}"')
    return body


def _whisker(x: float, low: float, high: float, kind: str, more: str = "") -> list[str]:
    return [
        _line(x, low, x, high, kind, more=more),
        _line(x - 4, low, x + 4, low, kind, more=more),
        _line(x - 4, high, x + 4, high, kind, more=more),
    ]


def _bar(frame: Frame, number: int, bar: Bar) -> list[str]:
    x, bottom = frame.x(number + 0.5), frame.height - BOTTOM
    half = min(34.0, (frame.x(1) - frame.x(0)) * 0.32)
    label = _text(x, bottom + 18, bar.label, "middle")
    if not math.isfinite(bar.value):
        return [label, _text(x, bottom - 8, "–", "middle")]
    colour = "var(--muted)" if bar.colour is None else _colour(bar.colour)
    top = frame.y(bar.value)
    interval = f" [{number_text(bar.low, True)}, {number_text(bar.high, True)}]"
    title = escape(f"{bar.label}: {number_text(bar.value, True)}{interval}")
    body = [
        f'<rect x="{x - half:.1f}" y="{top:.1f}" width="{2 * half:.1f}" height="{bottom - top:.1f}" rx="3" '
        f'fill="{colour}"><title>{title}</title></rect>'
    ]
    highest = top
    if math.isfinite(bar.low) and math.isfinite(bar.high):
        body += _whisker(x, frame.y(bar.low), frame.y(bar.high), "bar-whisker")
        highest = min(top, frame.y(bar.high))
    value = f'<text class="value" x="{x:.1f}" y="{highest - 7:.1f}" text-anchor="middle">'
    return [*body, f"{value}{100 * bar.value:.1f}%</text>", label]


def _legend(names: Sequence[str], width: float) -> list[str]:
    """Names at the upper right, each with a dash of its colour; the widths of letters are estimated."""
    body, x = [], width - RIGHT
    for number, name in reversed(list(enumerate(names))):
        x -= 7.0 * len(name)
        body.append(_text(x, 18, name, "start"))
        body.append(_line(x - 20, 14, x - 5, 14, "line", more=f' stroke="{_colour(number)}"{_dash(number)}'))
        x -= 34
    return body


def _svg(frame: tuple[float, float], title: str, body: Sequence[str], *, inline: bool, legend: bool = False) -> str:
    width, height = frame
    # The name space makes it a picture file; inside HTML it is implied.
    outside = "" if inline else ' xmlns="http://www.w3.org/2000/svg"'
    style = "" if inline else f"<style>{CHART_STYLE}</style>"
    paper = "" if inline else f'<rect width="{width}" height="{height}" rx="8" fill="var(--paper)"/>'
    # Inside HTML the page has the title; what is left of the strip above the plot is for a legend.
    top = 0 if not inline else 4 if legend else 18
    shown = "" if inline else f'<text class="title" x="{LEFT - 40}" y="20">{escape(title)}</text>'
    box = f'viewBox="0 {top} {width} {height - top}"'
    return (
        f'<svg{outside} class="assay-chart" {box} role="img" aria-label="{escape(title)}">'
        f"{style}{paper}{shown}{''.join(body)}</svg>"
    )


def escape(text: str) -> str:
    """Text as XML and HTML may hold it: markup and control characters escaped."""
    return escape_html(visible(text))


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x0: float, y0: float, x1: float, y1: float, kind: str, *, more: str = "") -> str:
    return f'<line class="{kind}" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"{more}/>'


def _colour(number: int) -> str:
    return f"var(--s{number % COLOURS})"


def _dash(number: int) -> str:
    return ' stroke-dasharray="6 4"' if number >= COLOURS else ""
