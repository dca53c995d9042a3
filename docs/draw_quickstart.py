"""Draws the README's pictures and prints its table from the runs that `make seeds` leaves in runs/seeds/."""

from __future__ import annotations

import sys
from pathlib import Path

import assay
from assay.train.charts import Bar, bars_svg, curve_svg

DOCS = Path(__file__).parent


def main(folder: Path) -> None:
    """One curve a seed, and held-out bars before and after."""
    runs = {f"seed {path.name}": assay.load_run(path) for path in sorted(folder.iterdir())}
    rewards = {name: [(r["step"], r["reward_mean"]) for r in run.metrics] for name, run in runs.items()}
    picture = curve_svg(rewards, title="Reward while training", y_label="mean reward", y_range=(0, 1))
    (DOCS / "quickstart-reward.svg").write_text(picture)
    bars = [
        _bar(f"{when}, {name}", run.evaluation[when], None if when == "before" else 0)
        for name, run in runs.items()
        for when in ("before", "after")
    ]
    title = "Held-out orders with every field right (sampled, 95 % intervals)"
    (DOCS / "quickstart-heldout.svg").write_text(bars_svg(bars, title=title, y_label="all fields right", width=720))
    print("| | before: sampled, greedy | after: sampled, greedy | steps | training |\n|---|---|---|---|---|")
    for name, run in runs.items():
        seconds = sum(r["seconds"] for r in run.metrics)
        shares = " | ".join(_shares(run.evaluation[when]) for when in ("before", "after"))
        print(f"| {name} | {shares} | {len(run.metrics)} | {seconds:.0f} s |")


def _bar(label: str, entry: dict[str, dict[str, dict[str, float]]], colour: int | None) -> Bar:
    share, (low, high) = entry["sampled"]["pass_at"]["1"], entry["sampled"]["pass_at_interval"]["1"]
    return Bar(label, share, low, high, colour)


def _shares(entry: dict[str, dict[str, dict[str, float]]]) -> str:
    return ", ".join(f"{entry[kind]['pass_at']['1']:.1%}" for kind in ("sampled", "greedy"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/seeds"))
