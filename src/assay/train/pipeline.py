"""Several stages in a row, each from the last one's model, with a held-out evaluation after each that trains.

What is finished is never done again, and an unfinished training stage goes on from its last whole checkpoint: to
go on after an interrupt or a fault, start the same pipeline in the same folder.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from assay.config import RESUMABLE, Config, changed_fields, load_config
from assay.errors import ConfigError, Interrupted
from assay.models.policy import resolve_model
from assay.telemetry.progress import Progress
from assay.telemetry.store import RunFolder, read_json, write_atomic
from assay.train import rejection, rl, sft
from assay.train.checkpoint import checkpoints
from assay.train.job import algorithm_of, build_composite, load_checked_rows
from assay.train.run import Run, exclusive, finished_step
from assay.train.stages import ROWS, START, Plan, StageSection, plan, read_pipeline_file
from assay.train.thinking import measure

LEDGER = "pipeline.json"
"""In the pipeline's folder: seconds and evaluations by stage."""

TRAINERS: dict[str, tuple[Callable[[Config, Path], Run], Callable[[Path], Run]]] = {
    "sft": (sft.train, sft.resume),
    "train": (rl.train, rl.resume),
}
"""Command → how a stage starts in a new folder, and how it goes on."""


def run(path: Path, out: Path | None = None) -> tuple[Plan, dict[str, Any]]:
    """Every stage that is left. Returns the plan and what was measured, as in pipeline.json.

    Raises ConfigError before anything starts if any stage could not, or if a stage that has begun is described
    differently now.
    """
    folder = out or Path(os.environ.get("ASSAY_RUNS", "runs")) / read_pipeline_file(path).name
    p = plan(path, folder)
    check(p)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the pipeline's folder cannot be made: {error}; choose another one with --out") from error
    with exclusive(folder):
        ledger = Ledger(folder / LEDGER)
        try:
            run_stages(p, ledger)
        except Interrupted as error:
            raise Interrupted(
                f"{error}\ngo on with the whole pipeline: assay pipeline {path} --out {folder}"
            ) from error
    return p, ledger.read()


def run_stages(p: Plan, ledger: Ledger) -> None:
    """Evaluate the first model, then each stage in turn unless it is finished."""
    progress = Progress(len(p.file.stages))
    if p.file.evaluation.start:
        evaluate(p, ledger, START, p.configs[0].model.name)
    for number, (stage, config) in enumerate(p.stages(), start=1):
        folder = p.stage_folder(stage.name)
        if is_finished(stage, folder):
            progress.note(f"stage {number}/{len(p.configs)}, {stage.name}: finished before")
        else:
            progress.note(f"stage {number}/{len(p.configs)}, {stage.name}: assay {stage.command}")
            with ledger.clock(stage.name):
                run_stage(stage, config, folder)
            # The stage's model and optimiser hold each other in cycles.
            gc.collect()
        if stage.command != "sample":
            evaluate(p, ledger, stage.name, str(folder / "model"))


def run_stage(stage: StageSection, config: Config, folder: Path) -> None:
    """Start a stage, or go on with it."""
    if stage.command == "sample":
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        write_atomic(folder / "config.toml", config.to_toml().encode())
        result = rejection.sample(
            config,
            folder / ROWS,
            samples=stage.samples or config.algorithm.group_size,
            per_prompt=stage.per_prompt,
        )
        Progress(1).note(str(result))
        return
    start, go_on = TRAINERS[stage.command]
    if checkpoints(folder / "checkpoints"):
        go_on(folder)
    else:
        # Killed before its first checkpoint: there is nothing in it to go on from.
        shutil.rmtree(folder, ignore_errors=True)
        start(config, folder)


def evaluate(p: Plan, ledger: Ledger, name: str, model: str) -> None:
    """Measure a model on the held-out rows, unless it has been in just this way."""
    e, c = p.file.evaluation, p.evaluation
    settings = {
        "data": c.data.eval,
        "prompts": e.prompts or c.data.eval_rows,
        "samples": e.samples,
        "temperature": c.rollout.temperature,
        "max_new_tokens": c.rollout.max_new_tokens,
        "seed": c.seed,
        "verifiers": [v.model_dump() for v in c.verifiers],
    }
    if ledger.evaluation(name).get("settings") == settings:
        return
    began = time.monotonic()
    rows = e.prompts or c.data.eval_rows
    result = measure(c, model, prompts=rows, samples=e.samples, label=f"evaluation, {name}")
    gc.collect()
    ledger.add_evaluation(name, {"settings": settings, **result, "seconds": time.monotonic() - began})


def is_finished(stage: StageSection, folder: Path) -> bool:
    """Whether the stage has left its rows or its last model."""
    if stage.command == "sample":
        return (folder / ROWS).is_file()
    return finished_step(RunFolder(folder)) is not None


def check(p: Plan) -> None:
    """Raise an AssayError for what could not run: verifiers, algorithms, data, models, and stages begun otherwise."""
    resolve_model(p.configs[0].model.name)
    load_checked_rows(p.evaluation.data.eval or "", build_composite(p.evaluation))
    for stage, config in p.stages():
        try:
            algorithm_of(config)
            verify = build_composite(config)
            if stage.rows_from is None:
                load_checked_rows(config.data.train, verify)
        except ConfigError as error:
            raise ConfigError(f"stage {stage.name}: {error}") from error
    _check_begun(p)


def _check_begun(p: Plan) -> None:
    finished = True
    for stage, config in p.stages():
        folder = p.stage_folder(stage.name)
        if not folder.exists():
            finished = False
            continue
        if not finished:
            raise ConfigError(
                f"{folder} exists, but a stage before it is not finished, so it is of another model; delete it, or "
                f"choose another --out"
            )
        if (folder / "config.toml").is_file() and (
            changed := changed_fields(load_config(folder / "config.toml"), config) - RESUMABLE
        ):
            raise ConfigError(
                f"stage {stage.name} has begun with another recipe ({', '.join(sorted(changed))} differ); choose "
                f"another --out, or delete {folder} and those of the stages after it"
            )
        finished = is_finished(stage, folder)


class Ledger:
    """pipeline.json: ``{"seconds": {stage: s}, "evaluations": {stage: {...}}}``, written whole after each change."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Any]:
        return {"seconds": {}, "evaluations": {}, **read_json(self._path)}

    def evaluation(self, name: str) -> dict[str, Any]:
        """What was measured after a stage; empty if nothing was."""
        found: dict[str, Any] = self.read()["evaluations"].get(name, {})
        return found

    def add_evaluation(self, name: str, result: dict[str, Any]) -> None:
        known = self.read()
        self._write({**known, "evaluations": {**known["evaluations"], name: result}})

    @contextlib.contextmanager
    def clock(self, stage: str) -> Iterator[None]:
        """Add the time until the block ends, however it ends, to the stage's seconds."""
        began = time.monotonic()
        try:
            yield
        finally:
            known = self.read()
            seconds = known["seconds"].get(stage, 0.0) + time.monotonic() - began
            self._write({**known, "seconds": {**known["seconds"], stage: seconds}})

    def _write(self, content: dict[str, Any]) -> None:
        write_atomic(self._path, json.dumps(content).encode())
