"""``python -m assay`` is ``assay``."""

from assay.cli.main import run

run()
