"""A run: its folder, and what is written there at the start, at checkpoints and at the end."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from assay.config import Config, load_config
from assay.errors import CheckpointError, ConfigError
from assay.telemetry.store import RunFolder, write_atomic
from assay.train.checkpoint import UNFINISHED, checkpoints, publish_folder


@dataclass(frozen=True, slots=True)
class Run:
    """A finished or unfinished run on disk."""

    path: Path

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path)

    @property
    def config(self) -> Config:
        return load_config(self.folder.config)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One object a step."""
        return self.folder.read_metrics()

    @property
    def evaluation(self) -> dict[str, Any]:
        """Held-out results: before, after and during."""
        return self.folder.read_evaluation()

    @property
    def model(self) -> Path:
        """The last good model, a Hugging Face folder."""
        return self.folder.model


def load_run(path: str | Path) -> Run:
    """Open a run folder. Raises CheckpointError if it is none."""
    if not (Path(path) / "config.toml").is_file():
        raise CheckpointError(f"{Path(path).absolute()} is no run folder: it has no config.toml")
    return Run(Path(path))


def new_run_folder(config: Config, out: Path | None) -> Path:
    """Make the folder of a new run: --out, or the recipe's name under $ASSAY_RUNS, numbered if taken.

    Raises ConfigError for an --out that holds something: nothing is ever overwritten.
    """
    if out is not None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(f"--out {out} is not empty; choose a new folder, or go on with `--resume {out}`")
        out.mkdir(parents=True, exist_ok=True)
        return out
    runs = Path(os.environ.get("ASSAY_RUNS", "runs"))
    number = 1
    while True:
        path = runs / (config.name if number == 1 else f"{config.name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
            continue
        return path


def last_checkpoint(path: Path) -> Path:
    """The newest whole checkpoint of a run. Raises CheckpointError if there is none."""
    load_run(path)
    found = checkpoints(path / "checkpoints")
    if not found:
        raise CheckpointError(
            f"{path} has no whole checkpoint to go on from (it stopped before the first); start it again"
        )
    return found[-1]


def write_start(run: RunFolder, config: Config, device: torch.device) -> None:
    """The resolved recipe and what it runs on."""
    write_atomic(run.config, config.to_toml().encode())
    environment = {
        **{name: version(name) for name in ("assay", "torch", "transformers", "peft", "numpy")},
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }
    write_atomic(run.environment, json.dumps(environment, indent=1).encode())


def write_evaluation(run: RunFolder, evaluation: dict[str, Any]) -> None:
    write_atomic(run.evaluation, json.dumps(evaluation, indent=1).encode())


def write_model(run: RunFolder, save: Callable[[Path], None]) -> None:
    """Replace the run's model with the current one; a reader never sees half of it."""
    scratch = run.model.with_name(f"{UNFINISHED}model")
    save(scratch)
    publish_folder(scratch, run.model)
