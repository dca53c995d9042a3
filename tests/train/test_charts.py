"""Charts are well-formed SVG that says what the data say, at the places where they say it."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from assay.train.charts import Bar, bars_svg, curve_svg, number_text, ticks, trailing_mean

SVG = "{http://www.w3.org/2000/svg}"
NAN = math.nan


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def lines_of(root: ElementTree.Element) -> list[list[tuple[float, float]]]:
    drawn = []
    for line in root.iter(f"{SVG}polyline"):
        pairs = [pair.split(",") for pair in line.attrib["points"].split()]
        drawn.append([(float(x), float(y)) for x, y in pairs])
    return drawn


def titles(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}title")]


def test_points_lie_where_the_axes_say() -> None:
    root = parsed(curve_svg({"a": [(0, 0.0), (5, 1.0), (10, 0.5)]}, title="t", y_label="y", y_range=(0, 1)))
    # 560 × 260 with margins left 58, right 18, top 34, bottom 44.
    assert lines_of(root) == [[(58.0, 216.0), (300.0, 34.0), (542.0, 125.0)]]
    assert titles(root) == ["a: 0 at 0", "a: 1 at 5", "a: 0.5 at 10"]


def test_a_standalone_picture_needs_nothing_from_outside() -> None:
    svg = curve_svg({"a": [(0, 0.0), (1, 1.0)]}, title="t", y_label="y")
    assert svg.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert "prefers-color-scheme:dark" in svg
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<script|@import|url\(|href", svg)
    inline = curve_svg({"a": [(0, 0.0), (1, 1.0)]}, title="t", y_label="y", inline=True)
    assert "http" not in inline
    assert "<style" not in inline


def test_a_nan_is_a_gap_not_a_zero() -> None:
    points = [(0, 1.0), (1, 2.0), (2, NAN), (3, 3.0), (4, 4.0)]
    root = parsed(curve_svg({"a": points}, title="t", y_label="y"))
    assert [len(line) for line in lines_of(root)] == [2, 2]
    assert len(titles(root)) == 4
    assert "nan" not in ElementTree.tostring(root, "unicode").lower()


@pytest.mark.parametrize("series", [{}, {"a": []}, {"a": [(1, NAN)]}, {"a": [(1, math.inf)]}])
def test_nothing_to_draw_is_said(series: dict[str, list[tuple[float, float]]]) -> None:
    assert "nothing measured" in curve_svg(series, title="t", y_label="y")


@pytest.mark.parametrize("points", [[(3, 0.0)], [(3, 7.0)], [(1, 5.0), (2, 5.0)], [(1, -5.0), (2, -5.0)]])
def test_one_point_or_a_flat_line_has_axes_too(points: list[tuple[float, float]]) -> None:
    root = parsed(curve_svg({"a": points}, title="t", y_label="y"))
    assert len(titles(root)) == len(points)
    for circle in root.iter(f"{SVG}circle"):
        assert 34 <= float(circle.attrib["cy"]) <= 216


def test_names_are_escaped() -> None:
    hostile = '<script>alert("x")</script>&\x00'
    root = parsed(curve_svg({hostile: [(0, 0.0), (1, 1.0)], "b": [(0, 1.0)]}, title=hostile, y_label=hostile))
    assert not list(root.iter(f"{SVG}script"))
    assert titles(root)[0] == '<script>alert("x")</script>&\\x00: 0 at 0'


def test_several_series_have_a_legend_and_their_own_colours() -> None:
    root = parsed(curve_svg({n: [(0, 0.0), (1, 1.0)] for n in ("a", "b")}, title="t", y_label="y"))
    strokes = [line.attrib["stroke"] for line in root.iter(f"{SVG}polyline")]
    assert strokes == ["var(--s0)", "var(--s1)"]
    assert {"a", "b"} <= {text.text for text in root.iter(f"{SVG}text")}


def test_whiskers_widen_the_axis_to_fit() -> None:
    root = parsed(
        curve_svg({"a": [(0, 0.5), (1, 0.6)]}, title="t", y_label="y", intervals={"a": [(0, 0.1, 0.9), (1, NAN, NAN)]})
    )
    whiskers = [line for line in root.iter(f"{SVG}line") if line.attrib["class"] == "whisker"]
    assert len(whiskers) == 3
    ends = [float(whiskers[0].attrib[name]) for name in ("y1", "y2")]
    assert 34 <= min(ends) < max(ends) <= 216


def test_smoothing_keeps_the_data_in_sight() -> None:
    points = [(float(i), float(i % 2)) for i in range(50)]
    root = parsed(curve_svg({"a": points}, title="t", y_label="y", smooth=10))
    classes = [line.attrib["class"] for line in root.iter(f"{SVG}polyline")]
    assert classes == ["line faint", "line"]


def test_long_runs_have_few_hover_points() -> None:
    root = parsed(curve_svg({"a": [(float(i), 1.0 * i) for i in range(5000)]}, title="t", y_label="y"))
    assert 200 <= len(titles(root)) <= 250
    assert len(lines_of(root)[0]) == 5000


def test_trailing_mean() -> None:
    assert trailing_mean([(1, 1.0), (2, 3.0), (3, NAN), (4, 5.0)], 2) == [(1, 1.0), (2, 2.0), (4, 4.0)]


def test_bars_have_their_heights_and_whiskers() -> None:
    bars = [Bar("before", 0.5, 0.25, 0.75, None), Bar("after", 1.0, 1.0, 1.0), Bar("none", NAN, NAN, NAN)]
    root = parsed(bars_svg(bars, title="t", y_label="share"))
    paper, before, after = root.iter(f"{SVG}rect")
    assert paper.attrib["fill"] == "var(--paper)"
    assert float(before.attrib["height"]) == 91.0  # half of 260 - 34 - 44
    assert float(after.attrib["height"]) == 182.0
    assert titles(root) == ["before: 50% [25%, 75%]", "after: 100% [100%, 100%]"]
    whiskers = [e for e in root.iter(f"{SVG}line") if e.attrib["class"] == "bar-whisker"]
    assert [float(whiskers[0].attrib[name]) for name in ("y1", "y2")] == [170.5, 79.5]


def test_bars_of_nothing() -> None:
    assert "nothing measured" in bars_svg([], title="t", y_label="share")
    parsed(bars_svg([Bar("a", 0.0, 0.0, 0.0)], title="t", y_label="share"))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (1, 30, [10, 20, 30]), (-0.02, 0.013, [-0.02, -0.01, 0, 0.01]), (5, 5, [5])],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high, 5) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.53333, "0.533"), (417.4, "417"), (1234.5, "1234"), (12345, "12.3k"), (2e-5, "2e-05"), (NAN, "–")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number_text(value) == text
