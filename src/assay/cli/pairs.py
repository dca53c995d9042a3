"""assay pairs: preference pairs from a run's completions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.errors import ConfigError, DataError


def pairs(
    run: Annotated[Path, typer.Argument(help="A run folder that `assay train` wrote.")],
    out: Annotated[Path, typer.Option(help="The file to write, .jsonl.")],
    steps: Annotated[str, typer.Option(metavar="A:B", help="Only these steps, both ends included.")] = ":",
    margin: Annotated[float, typer.Option(min=0.0, help="Rewards differ by at least this; 0: by anything.")] = 0.0,
    per_group: Annotated[int, typer.Option(min=1, help="Pairs of one group at most.")] = 1,
) -> None:
    """Write preference pairs: of each group of completions, the best with the worst by their rewards."""
    first, last = _parse_steps(steps)
    if out.suffix.lower() != ".jsonl":
        raise ConfigError(f"--out {out} must end in .jsonl, which is how `assay dpo` reads it")
    if out.exists():
        raise ConfigError(f"--out {out} is there already; delete it, or choose another name")
    from assay.train.pairs import pairs_of_run, write_pairs
    from assay.train.run import load_run

    found = pairs_of_run(load_run(run).folder, first=first, last=last, margin=margin, per_group=per_group)
    reasons = "".join(f"\n{count:7} groups gave none: {reason}" for reason, count in found.without.items())
    if not found.pairs:
        raise DataError(f"no pair in {found.groups} groups; lower --margin, or take more --steps{reasons}")
    write_pairs(out, found.pairs)
    gave = found.groups - sum(found.without.values())
    print(f"{len(found.pairs)} pairs from {gave} of {found.groups} groups: {out}{reasons}")


def _parse_steps(text: str) -> tuple[int | None, int | None]:
    first, colon, last = text.partition(":")
    if not colon or not all(part.isascii() and part.isdecimal() for part in (first, last) if part):
        raise ConfigError(f"--steps needs A:B such as 1:20, 5: or :10, got {text!r}")
    return (int(first) if first else None), (int(last) if last else None)
