"""The disk fills up in mid-run: exit code 4, no half-written files, and the run goes on once there is space."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from assay.train.checkpoint import read_checkpoint

pytestmark = pytest.mark.slow

SIZE = 80_000_000


@pytest.fixture
def disk(folder: Path) -> Iterator[Path]:
    """A file system of 80 MB, of which the start-up check wants 51."""
    place = folder / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "assay-test", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system of its own can only be mounted by root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


# The reward function is called 8 times before step 1 and 8 times in each step.
FULL = {
    "no byte left in step 4": (8 + 3 * 8 + 3, 0, 2),
    "room for the records of step 4 but not for its checkpoint": (8 + 3 * 8 + 3, 65_536, 2),
    "no byte left in the closing evaluation": (8 + 6 * 8 + 3, 0, 6),
}


@pytest.mark.parametrize("case", FULL)
def test_a_full_disk_is_survived(
    case: str,
    disk: Path,
    folder: Path,
    start: Callable[..., Any],
    recipe_file: Callable[..., Path],
    traces: Callable[[Path], Any],
    whole: Any,
) -> None:
    call, leave, last = FULL[case]
    (folder / "fill.json").write_text(json.dumps({"call": call, "leave": leave}))

    ended = start("train", recipe_file(), "--out", "disk/run").wait()
    assert ended.code == 4
    assert ended.stderr.startswith("assay: the disk is full (")
    assert ended.stderr.count("\n") == 1
    checkpoint = f"disk/run/checkpoints/step-{last:06d}"
    assert f"The last whole checkpoint is {checkpoint}. Free some space, then go on." in ended.stderr

    assert read_checkpoint(Path(checkpoint))[0].step == last
    AutoModelForCausalLM.from_pretrained(f"{checkpoint}/model")
    assert not list(disk.rglob(".writing-*"))

    (disk / "filler").unlink()
    (folder / "fill.json").unlink()
    assert start("train", "--resume", "disk/run").wait().code == 0
    assert traces(disk / "run") == whole


def test_a_full_disk_is_refused_at_the_start(
    disk: Path, start: Callable[..., Any], recipe_file: Callable[..., Path]
) -> None:
    (disk / "filler").write_bytes(bytes(40_000_000))
    ended = start("train", recipe_file(), "--out", "disk/run").wait()
    assert ended.code == 2
    assert "too little disk" in ended.stderr
    assert not (disk / "run").exists()
