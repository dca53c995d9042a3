"""Draws the curves and fills the tables of docs/algorithms/ from the runs that `make algorithms` leaves."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import assay
from assay.train.charts import curve_svg
from assay.train.run import Run

PAGES = Path(__file__).parent / "algorithms"
COMMAND = "`make algorithms` (tiny recipe, 100 steps of 32 × 8 completions, 512 held-out sums)"
Seeds = Mapping[str, Run]


def main(folder: Path) -> None:
    """A curve and a table on each algorithm's page, and all of them on the first page."""
    runs = {
        path.name: {seed.name: assay.load_run(seed) for seed in sorted(path.iterdir())}
        for path in sorted(folder.iterdir(), key=lambda p: (*ORDER, p.name).index(p.name))
    }
    for name, seeds in runs.items():
        series = {f"seed {seed}": rewards(run) for seed, run in seeds.items()}
        picture(f"{name}.svg", series, f"{name}: share right while training")
        rows = [f"| seed {seed} | {cells(run)} |" for seed, run in seeds.items()]
        table = "\n".join(["| | sampled, before → after | greedy, before → after | entropy at the end |", RULE, *rows])
        if (PAGES / f"{name}.md").exists():
            fill(f"{name}.md", f"measured: {name}", f"{COMMAND}:\n\n{table}\n\n![Reward of {name}]({name}.svg)")
    first = {name: rewards(next(iter(seeds.values()))) for name, seeds in runs.items()}
    picture("algorithms.svg", first, "Share right while training, seed 0")
    fill("README.md", "table", f"{overview(runs)}\n\n![Reward of all algorithms](algorithms.svg)")


ORDER = ("ppo", "grpo", "dr_grpo", "dapo", "rloo", "reinforce_pp", "gspo", "cispo")
RULE = "|---|---|---|---|"


def overview(runs: Mapping[str, Seeds]) -> str:
    """One line an algorithm: its seeds' held-out shares, and what the runs started from."""
    lines = ["| | sampled, three seeds | mean | greedy, three seeds | mean |", "|---|---|---|---|---|"]
    start = next(iter(next(iter(runs.values())).values()))
    lines.append(f"| before | {share(start, 'before', 'sampled'):.1%} | | {share(start, 'before', 'greedy'):.1%} | |")
    for name, seeds in runs.items():
        row = [f"[`{name}`]({name}.md)"]
        for kind in ("sampled", "greedy"):
            shares = [share(run, "after", kind) for run in seeds.values()]
            row += [", ".join(f"{s:.1%}" for s in shares), f"{sum(shares) / len(shares):.1%}"]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def cells(run: Run) -> str:
    """Before → after, sampled and greedy, and the last entropy."""
    moved = [f"{share(run, 'before', kind):.1%} → {share(run, 'after', kind):.1%}" for kind in ("sampled", "greedy")]
    return " | ".join([*moved, f"{run.metrics[-1]['entropy']:.3f}"])


def share(run: Run, when: str, kind: str) -> float:
    """Held-out share right."""
    value: float = run.evaluation[when][kind]["pass_at"]["1"]
    return value


def rewards(run: Run) -> list[tuple[float, float]]:
    """The share right of each step's completions; a mean of five steps each, since one step is 256 completions."""
    right = [r["correct_rate"] for r in run.metrics]
    return [(i + 1.0, sum(right[max(0, i - 4) : i + 1]) / len(right[max(0, i - 4) : i + 1])) for i in range(len(right))]


def picture(name: str, series: Mapping[str, list[tuple[float, float]]], title: str) -> None:
    """A curve, written beside the pages."""
    (PAGES / name).write_text(curve_svg(series, title=title, y_label="right", percent=True))


def fill(page: str, mark: str, text: str) -> None:
    """Replace what stands between ``<!-- mark -->`` and ``<!-- end -->``."""
    path = PAGES / page
    pattern = re.compile(rf"(<!-- {re.escape(mark)} -->\n).*?(<!-- end -->)", re.DOTALL)
    filled, count = pattern.subn(lambda m: f"{m[1]}{text}\n{m[2]}", path.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{path} has {count} places marked <!-- {mark} -->, and needs one")
    path.write_text(filled, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/algorithms"))
