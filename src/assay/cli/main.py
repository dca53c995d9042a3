"""The command line: one file a command, and errors as one message without a traceback."""

from __future__ import annotations

import os
import sys

import typer

from assay.cli.doctor import doctor
from assay.cli.dpo import dpo
from assay.cli.eval import evaluate
from assay.cli.pairs import pairs
from assay.cli.pipeline import pipeline
from assay.cli.recipes import recipes
from assay.cli.report import report
from assay.cli.sample import sample
from assay.cli.score import score
from assay.cli.sft import sft
from assay.cli.train import train
from assay.errors import AssayError

app = typer.Typer(
    help="Post-train language models by reinforcement learning with verifiable rewards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(train)
app.command("sft")(sft)
app.command("dpo")(dpo)
app.command("pairs")(pairs)
app.command("sample")(sample)
app.command("pipeline")(pipeline)
app.command("eval")(evaluate)
app.command("score")(score)
app.command("report")(report)
app.command("recipes")(recipes)
app.command("doctor")(doctor)


def run() -> None:
    """Entry point of ``assay``. Exit codes: 0, 1 check failed, 2 usage, 3 alarm, 4 machine, 130 interrupted."""
    # Libraries' bars for loading and saving would break into the run's own lines.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        app()
    except AssayError as error:
        print(f"assay: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Exception as error:
        # Outside a run too, a full disk or too little memory is no fault of the program.
        from assay.train.faults import machine_error

        if (fault := machine_error(error)) is None:
            raise
        print(f"assay: {fault}", file=sys.stderr)
        sys.exit(fault.exit_code)
    except (KeyboardInterrupt, SystemExit) as end:
        # typer turns Ctrl-C into the exit code 130, and says nothing.
        if isinstance(end, SystemExit) and end.code != 130:
            raise
        print("assay: stopped at once; the last whole checkpoint stands", file=sys.stderr)
        sys.exit(130)
