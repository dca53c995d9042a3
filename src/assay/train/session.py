"""What every kind of training shares: steps that are whole or did not happen, records, checkpoints, evaluation.

A step is the body of ``for step in session.steps()``. Until it ends, nothing of the run's state has moved,
so an interrupt or a fault inside it leaves the run at the last whole step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from assay.config import RESUMABLE, Config, changed_fields, load_config
from assay.errors import ConfigError, EngineError, Interrupted, VerifierError
from assay.models.policy import Policy
from assay.rollout.engine import Engine
from assay.telemetry.progress import Progress
from assay.telemetry.sinks import MetricsFile, RolloutFiles, TensorBoard
from assay.telemetry.store import RunFolder
from assay.train import checkpoint as checkpoints
from assay.train.collect import Verify
from assay.train.evaluate import evaluate
from assay.train.faults import machine_error
from assay.train.interrupt import StopRequest
from assay.train.job import Prompts
from assay.train.report import write_report
from assay.train.run import (
    Run,
    exclusive,
    finished_step,
    last_checkpoint,
    load_run,
    write_evaluation,
    write_model,
    write_start,
)
from assay.types import Group, Sample

COMMANDS = {"grpo": "train", "ppo": "train"}
"""Commands of kinds of runs that have another name."""


class Session:
    """One run folder being written. Use as a context manager around the steps."""

    def __init__(
        self,
        kind: str,
        config: Config,
        path: Path,
        *,
        policy: Policy,
        engine: Engine,
        verify: Verify,
        eval_prompts: Prompts | None,
        state: Callable[[], dict[str, Tensor]],
        step: int,
        grade: Callable[[Sequence[Sample]], list[Sample]] = list,
    ) -> None:
        self._grade = grade
        self._kind = kind
        self._config = config
        self._policy = policy
        self._engine = engine
        self._verify = verify
        self._eval_prompts = eval_prompts
        self._state = state
        self._checkpoints = path / "checkpoints"
        self.folder = RunFolder(path)
        self.step = step
        """The last whole step."""
        self.progress = Progress(config.train.steps)
        self._stop = StopRequest()
        self._lock = exclusive(path)

    def __enter__(self) -> Session:
        self._lock.__enter__()
        try:
            self.folder.truncate_after(self.step)
            write_start(self.folder, self._config, self._policy.device)
        except OSError as error:
            raise machine_error(error, self._last_checkpoint()) or error from error
        self._metrics = MetricsFile(self.folder.metrics)
        self._rollouts = RolloutFiles(self.folder.rollouts)
        self._tensorboard = TensorBoard(self.folder.tensorboard)
        self.progress.__enter__()
        self._stop.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as last:
            last.callback(self._lock.__exit__, None, None, None)
            self._stop.__exit__(kind, error, trace)
            self.progress.__exit__(kind, error, trace)
            self._explain(error)

    def _explain(self, error: BaseException | None) -> None:
        """Raise what the user should read instead of ``error``: how to go on, and from where."""
        ended = self._interrupted() if isinstance(error, Interrupted) else error
        if isinstance(ended, Exception) and (fault := machine_error(ended, self._last_checkpoint())) is not None:
            raise fault from ended
        if isinstance(ended, EngineError | VerifierError):
            raise type(ended)(f"{ended}\n{self._last_checkpoint()}") from error
        if ended is not None and ended is not error:
            raise ended from error

    def steps(self, stop_at_correct: float | None = None) -> Iterator[int]:
        """Step numbers to do. Each becomes the run's last whole step when its body has ended.

        Ends early once an evaluation during training has ``stop_at_correct`` of its samples correct.
        """
        train = self._config.train
        if self.step == 0:
            self.evaluate("before")
        # Asked on a resume too: the run may have been stopped during the evaluation that was due after its last step.
        done = self._done(stop_at_correct)
        while not done:
            yield self.step + 1
            self.step += 1
            done = self._done(stop_at_correct)
            if done or self.step % train.checkpoint_every == 0:
                self.checkpoint()

    def totals(self, *names: str) -> dict[str, int]:
        """What the last whole step had counted under these names; 0 before the first."""
        last = next(iter(self.folder.read_metrics()[-1:]), {})
        return {name: int(last.get(name) or 0) for name in names}

    def phase(self, label: str, done: int, total: int) -> None:
        """Show where a step is. A safe point: raises Interrupted if the user has asked to stop."""
        self._stop.check()
        self.progress.phase(label, done, total)

    def record(self, record: dict[str, Any], groups: Sequence[Group] = (), sample: Sample | None = None) -> None:
        """A step's metrics and completions to disk, and a line for whoever is watching."""
        if groups:
            self._rollouts.write(record["step"], groups)
        self._metrics.write(record)
        self._tensorboard.write(record)
        self.progress.step(record, sample)

    def evaluate(self, label: str) -> dict[str, Any] | None:
        """Held-out evaluation, kept in evaluation.json under ``label`` (before, during, after); of a step only once."""
        known = self.folder.read_evaluation()
        past = known.get("during", []) if label == "during" else [known[label]] if label in known else []
        measured: dict[str, Any] | None = next((entry for entry in past if entry["step"] == self.step), None)
        prompts = self._eval_prompts
        if prompts is None or measured is not None:
            return measured
        result = evaluate(
            self._engine,
            prompts.rows,
            prompts.ids,
            self._policy.decode,
            self._verify,
            max_new_tokens=self._config.rollout.max_new_tokens,
            temperature=self._config.rollout.temperature,
            seed=self._config.seed,
            on_progress=partial(self.phase, "evaluation"),
            grade=self._grade,
        )
        entry = {"step": self.step, "data": self._config.data.eval, **result}
        kept = [*known.get("during", []), entry] if label == "during" else entry
        write_evaluation(self.folder, {**known, label: kept})
        shown = f"held-out, step {self.step}" if label == "during" else f"held-out, {label}"
        self.progress.evaluation(shown, result, known.get("before"))
        return result

    def checkpoint(self) -> None:
        """Write a whole checkpoint of the last whole step."""
        progress = checkpoints.Progress(step=self.step, seed=self._config.seed, kind=self._kind)
        checkpoints.write_checkpoint(
            self._checkpoints, progress, self._state(), self._policy.save, self._config.train.keep_last
        )

    def finish(self) -> Run:
        """The closing evaluation, ``model/`` and ``report.html``."""
        self.evaluate("after")
        write_model(self.folder, self._policy.save_merged, self.step)
        self._tensorboard.close()
        report = write_report(self.folder.path)
        self.progress.note(f"model: {self.folder.model}\nreport: {report}")
        return Run(self.folder.path)

    def _done(self, stop_at_correct: float | None) -> bool:
        """Whether every step is done, or the evaluation that is due now says that enough is learnt."""
        train = self._config.train
        if self.step >= train.steps:
            return True
        if self.step == 0 or train.eval_every is None or self.step % train.eval_every:
            return False
        result = self.evaluate("during")
        share = result["sampled"]["pass_at"]["1"] if result is not None else None
        return stop_at_correct is not None and share is not None and bool(share >= stop_at_correct)

    def _interrupted(self) -> Exception:
        """Save the last whole step; the error that says how to go on, or why it could not be saved."""
        try:
            self.checkpoint()
        except Exception as failure:
            return failure
        command = COMMANDS.get(self._kind, self._kind)
        return Interrupted(f"stopped after step {self.step}; go on with: assay {command} --resume {self.folder.path}")

    def _last_checkpoint(self) -> str:
        found = checkpoints.checkpoints(self._checkpoints)
        if not found:
            return "There is no whole checkpoint yet."
        return f"The last whole checkpoint is {found[-1]}."


def resume_point(path: Path, kind: str, overrides: Sequence[str]) -> tuple[Config, Path]:
    """The recipe with ``overrides``, and the last whole checkpoint, of a run that is not finished.

    Raises ConfigError for a run of another kind, one that has done all its steps, and an override that would
    make it another run.
    """
    before = load_run(path).config
    config = load_config(load_run(path).folder.config, overrides)
    if changed := changed_fields(before, config) - RESUMABLE:
        raise ConfigError(
            f"{', '.join(sorted(changed))} cannot change in a run that goes on; only these may: "
            f"{', '.join(sorted(RESUMABLE))}"
        )
    found = last_checkpoint(path)
    progress = checkpoints.read_progress(found)
    if progress.kind != kind:
        command = COMMANDS.get(progress.kind, progress.kind)
        raise ConfigError(f"{path} is a run of `assay {command}`; resume it with that command")
    if config.train.steps < progress.step:
        raise ConfigError(f"{path} has done {progress.step} steps already; --steps counts all steps, so give more")
    if progress.step >= config.train.steps and finished_step(RunFolder(path)) == progress.step:
        raise ConfigError(f"{path} has finished its {progress.step} steps; to train further, add --steps N")
    return config, found
