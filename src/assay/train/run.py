"""A run: its folder, and what is written there at the start, at checkpoints and at the end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from assay.config import Config, load_config
from assay.errors import CheckpointError, ConfigError
from assay.models.policy import Policy
from assay.telemetry.store import UNFINISHED, RunFolder, read_json, write_atomic
from assay.train.checkpoint import checkpoints, publish_folder, remove_unfinished
from assay.train.job import check_disk

PROVENANCE = "assay.json"
"""In ``model/``: the step that it is of."""


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


def new_run_folder(config: Config, out: Path | None, policy: Policy, *, own_critic: bool = False) -> Path:
    """Make the folder of a new run: --out, or the recipe's name under $ASSAY_RUNS, numbered if taken.

    Raises ConfigError, before anything is made, for too little disk, and for an --out that holds something:
    nothing is ever overwritten.
    """
    runs = Path(os.environ.get("ASSAY_RUNS", "runs"))
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        there = out.is_dir() and checkpoints(out / "checkpoints")
        advice = f"go on with its run by `--resume {out}`" if there else "delete it if nothing in it is needed"
        raise ConfigError(f"--out {out} is not empty; choose a new folder, or {advice}")
    check_disk(out or runs, policy, config.train.keep_last, own_critic=own_critic)
    try:
        return _make_folder(out, runs, config.name)
    except OSError as error:
        raise ConfigError(f"the run folder cannot be made: {error}; choose another one with --out") from error


def resumed_run_folder(path: Path, config: Config, policy: Policy, *, own_critic: bool = False) -> Path:
    """The folder of a run that goes on, rid of what a kill left half-written.

    Raises ConfigError for too little disk, and while another process writes to it.
    """
    with exclusive(path):
        for folder in (path, path / "checkpoints", path / "rollouts"):
            remove_unfinished(folder)
    check_disk(path, policy, config.train.keep_last, own_critic=own_critic)
    return path


def _make_folder(out: Path | None, runs: Path, name: str) -> Path:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        return out
    number = 1
    while True:
        path = runs / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
            continue
        return path


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Keep other processes from writing this run. Raises ConfigError if one does already.

    The lock is the system's, so it ends with the process, however that ends.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(f"another process is writing the run {path}; wait for its end, or stop it first") from None
    try:
        yield
    finally:
        os.close(descriptor)


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


def finished_step(run: RunFolder) -> int | None:
    """The step that the run's model is of, or None before there is one: a run that goes further keeps the old one."""
    step: int | None = read_json(run.model / PROVENANCE).get("step")
    return step


def write_evaluation(run: RunFolder, evaluation: dict[str, Any]) -> None:
    write_atomic(run.evaluation, json.dumps(evaluation, indent=1).encode())


def write_model(run: RunFolder, save: Callable[[Path], None], step: int) -> None:
    """Replace the run's model with that of ``step``; a reader never sees half of it."""
    scratch = run.model.with_name(f"{UNFINISHED}model")
    try:
        save(scratch)
        (scratch / PROVENANCE).write_text(json.dumps({"step": step}), encoding="utf-8")
        publish_folder(scratch, run.model)
    finally:
        # On a full disk the half-written folder must not keep its space.
        shutil.rmtree(scratch, ignore_errors=True)
