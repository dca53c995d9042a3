"""assay pipeline: several stages in a row."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def pipeline(
    file: Annotated[Path, typer.Argument(help="A pipeline file (TOML) with [evaluation] and [[stages]].")],
    out: Annotated[
        Path | None, typer.Option(help="The pipeline's folder; default $ASSAY_RUNS/NAME. One that exists goes on.")
    ] = None,
) -> None:
    """Run stages in a row, each from the last one's model; start it again to go on where it stopped."""
    from assay.train.stages import read_pipeline_file

    read_pipeline_file(file)
    from assay.train import pipeline as stages  # torch takes seconds to import; a wrong file is refused before
    from assay.train.pipeline_table import table

    plan, measured = stages.run(file, out)
    print(f"{table([stage.name for stage in plan.file.stages], measured)}\n{plan.folder}")
