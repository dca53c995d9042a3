"""Whole runs through the command line: a model of 13 000 parameters, a reward that differs between completions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from assay.models.tiny import make_tiny
from assay.telemetry.store import RunFolder

REWARDS = """
import json
import os
import time

calls = 0

def digits(prompts, completions, **columns):
    global calls
    calls += 1
    if os.path.exists("pause.json") and calls == json.load(open("pause.json")):
        open("paused", "w").close()
        while os.path.exists("pause.json"):
            time.sleep(0.005)
    if os.path.exists("fill.json") and calls == json.load(open("fill.json"))["call"]:
        free = os.statvfs("disk").f_bavail * os.statvfs("disk").f_frsize
        with open("disk/filler", "wb") as file:
            file.write(bytes(free - json.load(open("fill.json"))["leave"]))
    return [sum(c.isdigit() for c in text) / 4 for text in completions]
"""
"""A reward that differs between completions. At the call that a file says, it waits for that file to go, or fills
the disk."""

CHILDREN = """
import gc, json, os, sys
import assay.cli.main, assay.train.rl, assay.train.sft, torch.utils.tensorboard
from assay.models.policy import load_policy, pick_device

load_policy(sys.argv[1], precision="float32", device=pick_device())
gc.freeze()
for line in sys.stdin:
    order = json.loads(line)
    if "wait" in order:
        answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
    else:
        answer = os.fork()
        if answer == 0:
            os.chdir(order["folder"])
            for descriptor, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
            sys.argv = ["assay", *order["args"]]
            assay.cli.main.run()
    print(answer, flush=True)
"""
"""Runs `assay` in a process of its own for each order; all are forked from one that has torch already loaded."""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny(folder, hidden=32, layers=1)
    return folder


@pytest.fixture(scope="session")
def recipe(tiny_model: Path) -> dict[str, Any]:
    """A recipe that is right, and takes a twentieth of a second a step."""
    return {
        "name": "tiny",
        "model": {"name": str(tiny_model)},
        "data": {"train": "builtin:addition?split=train&rows=64", "eval": "builtin:addition?split=heldout&rows=4"},
        "rollout": {"prompts_per_step": 2, "max_new_tokens": 4},
        "algorithm": {"group_size": 4},
        "verifiers": [{"name": "end_to_end_rewards:digits"}],
        "optimizer": {"learning_rate": 1e-2},
        "train": {"steps": 6, "checkpoint_every": 2},
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where assay runs, with the user's reward function in it."""
    (tmp_path / "end_to_end_rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ASSAY_RUNS", str(tmp_path / "runs"))
    return tmp_path


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


def write_recipe(path: Path, recipe: dict[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(recipe))
    return path


@pytest.fixture
def recipe_file(folder: Path, recipe: dict[str, Any]) -> Callable[..., Path]:
    """Writes the recipe with some of its tables changed: recipe_file(train={"steps": 3})."""

    def write(**changes: Any) -> Path:
        whole = {
            name: {**recipe.get(name, {}), **table} if isinstance(table, dict) else table
            for name, table in {**recipe, **changes}.items()
        }
        return write_recipe(folder / "recipe.toml", whole)

    return write


@dataclass(frozen=True)
class Child:
    """`assay` running in a process of its own."""

    pid: int
    folder: Path
    _server: Callable[[dict[str, Any]], int]

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> Outcome:
        """Its exit code; minus the signal's number if one killed it."""
        code = self._server({"wait": self.pid})
        return Outcome(code, (self.folder / "stdout").read_text(), (self.folder / "stderr").read_text())


@pytest.fixture(scope="session")
def _children(tiny_model: Path) -> Iterator[Callable[[dict[str, Any]], int]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", CHILDREN, str(tiny_model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as server:
        source, sink = server.stdout, server.stdin
        assert source is not None
        assert sink is not None

        def order(what: dict[str, Any]) -> int:
            sink.write(json.dumps(what) + "\n")
            sink.flush()
            return int(source.readline())

        yield order
        sink.close()


@pytest.fixture
def start(folder: Path, _children: Callable[[dict[str, Any]], int]) -> Callable[..., Child]:
    """Starts `assay …` in ``folder`` (or another) in a process of its own."""

    def begin(*args: str | Path, where: Path = folder) -> Child:
        return Child(_children({"folder": str(where), "args": [str(a) for a in args]}), where, _children)

    return begin


def calls_before(step: int) -> int:
    """How often the reward function is called before a step: the evaluation of 4 rows, and 2 × 4 completions a step."""
    return 2 * 4 + (step - 1) * 2 * 4


@pytest.fixture
def paused(folder: Path, start: Callable[..., Child]) -> Callable[..., Child]:
    """Starts `assay …` and returns once it waits inside the reward function, in the middle of a step."""

    def begin(*args: str | Path, step: int) -> Child:
        (folder / "pause.json").write_text(str(calls_before(step) + 3))
        child = start(*args)
        wait_until((folder / "paused").exists)
        return child

    return begin


def wait_until(condition: Callable[[], bool]) -> None:
    """A minute without it is a failure."""
    for _ in range(12_000):
        if condition():
            return
        time.sleep(0.005)
    pytest.fail("waited for a minute")


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    return wait_until


UNEQUAL = re.compile(r"seconds.*|tokens_per_second|verifier_ms_.*|trained_samples|milliseconds")
"""Times, and trained_samples, which counts from the last resume."""


def _without_times(records: list[dict[str, Any]]) -> list[str]:
    return [repr({k: v for k, v in r.items() if not UNEQUAL.fullmatch(k)}) for r in records]


def traces_of(path: Path) -> dict[str, Any]:
    run = RunFolder(path)
    last = sorted(run.checkpoints.iterdir())[-1]
    return {
        "model": (run.model / "model.safetensors").read_bytes(),
        "optimizer": (last / "optimizer.safetensors").read_bytes(),
        "checkpoints": sorted(p.name for p in run.checkpoints.iterdir()),
        "metrics": _without_times(run.read_metrics()),
        "rollouts": {step: _without_times(run.read_rollouts(step)) for step in run.rollout_steps()},
        "evaluation": run.evaluation.read_text(),
    }


@pytest.fixture
def traces() -> Callable[[Path], dict[str, Any]]:
    """Everything that a finished run leaves and that another one may be compared by; weights as bytes."""
    return traces_of


@pytest.fixture(scope="session")
def whole(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Path,
    recipe: dict[str, Any],
    _children: Callable[[dict[str, Any]], int],
) -> dict[str, Any]:
    """What the recipe's run leaves if nothing stops it."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "end_to_end_rewards.py").write_text(REWARDS)
    write_recipe(folder / "recipe.toml", recipe)
    pid = _children({"folder": str(folder), "args": ["train", "recipe.toml", "--out", "run"]})
    assert Child(pid, folder, _children).wait().code == 0
    left = traces_of(folder / "run")
    assert left["checkpoints"] == ["step-000004", "step-000006"]
    assert len(left["metrics"]) == len(left["rollouts"]) == 6
    # Nothing would be compared if nothing had been learnt.
    assert left["model"] != (tiny_model / "model.safetensors").read_bytes()
    return left
