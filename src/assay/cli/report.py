"""assay report: the static report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Write report.html of a run, finished or not, and print its path."""
    from assay.train.report import write_report
    from assay.train.run import load_run

    print(write_report(load_run(run).path))
