"""A checkpoint is whole or not there, whatever fails while it is written."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch

from assay.errors import CheckpointError
from assay.train.checkpoint import (
    ASIDE,
    Progress,
    checkpoints,
    publish_folder,
    read_checkpoint,
    remove_unfinished,
    write_checkpoint,
)

STATE = {"steps": torch.tensor(3), "exp_avg/w": torch.arange(6.0).reshape(2, 3).T}


def save(folder: Path) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")


def fail(folder: Path) -> None:
    save(folder)
    raise OSError(errno.ENOSPC, "No space left on device")


def write(folder: Path, step: int, keep_last: int = 2) -> Path:
    return write_checkpoint(folder, Progress(step=step, seed=7, kind="grpo"), STATE, save, keep_last)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = write(tmp_path / "checkpoints", 10)
    assert path == tmp_path / "checkpoints" / "step-000010"
    progress, state = read_checkpoint(path)
    assert progress == Progress(step=10, seed=7, kind="grpo", schema_version=1)
    assert state.keys() == STATE.keys()
    assert all(torch.equal(state[name], STATE[name]) for name in STATE)
    assert names(path) == ["model", "optimizer.safetensors", "progress.json"]


def test_the_last_ones_are_kept_in_the_order_of_steps(tmp_path: Path) -> None:
    # As text, step-1000000 comes before step-999999.
    for step in (999_998, 999_999, 1_000_000):
        write(tmp_path, step)
    assert [p.name for p in checkpoints(tmp_path)] == ["step-999999", "step-1000000"]
    write(tmp_path, 1_000_001, keep_last=1)
    assert names(tmp_path) == ["step-1000001"]


def test_a_failure_leaves_no_half_folder_and_the_old_ones(tmp_path: Path) -> None:
    old = write(tmp_path, 1, keep_last=1)
    before = {p: p.read_bytes() for p in old.rglob("*") if p.is_file()}
    with pytest.raises(OSError, match="No space"):
        write_checkpoint(tmp_path, Progress(step=2, seed=7, kind="grpo"), STATE, fail, 1)
    assert names(tmp_path) == ["step-000001"]
    assert {p: p.read_bytes() for p in old.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("broken", ["save_file", "publish_folder", "_sync"])
def test_a_failure_at_any_later_moment_leaves_none_either(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"assay.train.checkpoint.{broken}", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path, 2)
    assert names(tmp_path) == ["step-000001"]


def test_a_step_that_has_its_checkpoint_is_not_written_again(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    assert write_checkpoint(tmp_path, Progress(step=1, seed=0, kind="sft"), {}, fail, 1) == path
    assert read_checkpoint(path)[0].seed == 7


def test_what_a_kill_left_is_no_checkpoint_and_is_cleared(tmp_path: Path) -> None:
    write(tmp_path, 1)
    save(tmp_path / ".writing-step-000002")
    (tmp_path / "step-000003").mkdir()
    assert [p.name for p in checkpoints(tmp_path)] == ["step-000001"]
    remove_unfinished(tmp_path)
    assert names(tmp_path) == ["step-000001", "step-000003"]
    # Nor does it stand in the way of the next one of its name.
    save(tmp_path / ".writing-step-000002")
    write(tmp_path, 2)
    assert [p.name for p in checkpoints(tmp_path)] == ["step-000001", "step-000002"]
    remove_unfinished(tmp_path / "none")


def test_what_a_kill_left_moved_aside_takes_its_name_back(tmp_path: Path) -> None:
    save(tmp_path / f"{ASIDE}model")
    remove_unfinished(tmp_path)
    assert names(tmp_path) == ["model"]
    save(tmp_path / f"{ASIDE}model")
    remove_unfinished(tmp_path)
    assert names(tmp_path) == ["model"]


def test_an_unknown_version_says_what_can_read_it(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    fields = json.loads((path / "progress.json").read_text())
    (path / "progress.json").write_text(json.dumps({**fields, "schema_version": 99}))
    with pytest.raises(CheckpointError, match="checkpoint version 99, and this assay reads 1; resume it with"):
        read_checkpoint(path)


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    for content in (b"old", b"new"):
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        (scratch / content.decode()).write_bytes(content)
        publish_folder(scratch, tmp_path / "model")
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == ["new"]
