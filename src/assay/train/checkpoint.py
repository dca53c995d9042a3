"""Checkpoints: written to a temporary folder, synced, renamed. What has its final name is whole."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from assay.errors import CheckpointError
from assay.telemetry.store import UNFINISHED

SCHEMA_VERSION = 1

ASIDE = f"{UNFINISHED}old-"
"""How a folder is called while the one that replaces it takes its name."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands. Randomness is counter-based, so seed and step are its whole state, and data position."""

    step: int
    seed: int
    kind: str
    """grpo, sft or dpo: what the run does."""
    schema_version: int = SCHEMA_VERSION


def write_checkpoint(
    folder: Path, progress: Progress, state: dict[str, Tensor], save_model: Callable[[Path], None], keep_last: int
) -> Path:
    """Write ``folder``/step-…; older ones beyond ``keep_last`` go only once the new one is whole."""
    target = folder / f"step-{progress.step:06d}"
    if target.exists():
        return target
    scratch = folder / f"{UNFINISHED}{target.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        save_model(scratch / "model")
        save_file({k: v.contiguous() for k, v in state.items()}, scratch / "optimizer.safetensors")
        (scratch / "progress.json").write_text(json.dumps(asdict(progress), indent=1), encoding="utf-8")
        publish_folder(scratch, target)
    finally:
        # On a full disk the half-written folder would keep the space that ending in order needs.
        shutil.rmtree(scratch, ignore_errors=True)
    for old in checkpoints(folder)[:-keep_last]:
        shutil.rmtree(old)
    return target


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    found = [p for p in folder.glob("step-*") if re.fullmatch(r"step-\d+", p.name) and (p / "progress.json").exists()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


def read_progress(path: Path) -> Progress:
    """Where a checkpoint stands. Raises CheckpointError for a version that this assay does not know."""
    fields = json.loads((path / "progress.json").read_text(encoding="utf-8"))
    if fields.get("schema_version") != SCHEMA_VERSION:
        raise CheckpointError(
            f"{path} has checkpoint version {fields.get('schema_version')}, and this assay reads {SCHEMA_VERSION}; "
            f"resume it with the version of assay that environment.json names"
        )
    return Progress(**fields)


def read_checkpoint(path: Path) -> tuple[Progress, dict[str, Tensor]]:
    """Progress and optimiser state. Raises CheckpointError for what cannot be read."""
    progress = read_progress(path)
    try:
        return progress, load_file(path / "optimizer.safetensors")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"the optimiser's state in {path} cannot be read ({error}); if an older checkpoint stands beside it, "
            f"delete this one and resume again"
        ) from error


def publish_folder(scratch: Path, target: Path) -> None:
    """Sync everything in ``scratch`` to disk, then give it its name in one step, replacing what was there."""
    for path in [*scratch.rglob("*"), scratch]:
        _sync(path)
    if target.exists():
        # A folder cannot be replaced in one step: the old one moves aside first.
        aside = target.with_name(f"{ASIDE}{target.name}")
        shutil.rmtree(aside, ignore_errors=True)
        target.rename(aside)
        scratch.rename(target)
        shutil.rmtree(aside)
    else:
        scratch.rename(target)
    _sync(target.parent)


def remove_unfinished(folder: Path) -> None:
    """Clear what a killed run left half-written; what it had only moved aside takes its name back."""
    for path in folder.glob(f"{ASIDE}*"):
        target = path.with_name(path.name.removeprefix(ASIDE))
        if not target.exists():
            path.rename(target)
    for path in folder.glob(f"{UNFINISHED}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
