"""A full disk and exhausted memory are told apart from bugs, however a library wraps them."""

from __future__ import annotations

import errno

import pytest
import torch

from assay.train.faults import machine_error

LAST = "The last whole checkpoint is runs/x/checkpoints/step-000010."

DISK: list[Exception] = [
    OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl"),
    OSError(errno.EDQUOT, "quota"),
    OSError(errno.EFBIG, "too big"),
    RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ValueError("Disk quota exceeded"),
]
MEMORY: list[Exception] = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]
OTHERS: list[Exception] = [
    OSError(errno.EACCES, "Permission denied"),
    FileNotFoundError(2, "No such file"),
    RuntimeError("shape mismatch"),
    ValueError(""),
]


@pytest.mark.parametrize("error", DISK)
def test_a_full_disk(error: Exception) -> None:
    found = machine_error(error, LAST)
    assert found is not None
    assert found.exit_code == 4
    assert str(found).startswith(f"the disk is full ({error}). {LAST} Free some space")


@pytest.mark.parametrize("error", MEMORY)
def test_exhausted_memory_says_what_to_lower(error: Exception) -> None:
    found = machine_error(error, LAST)
    assert found is not None
    assert found.exit_code == 4
    assert str(found).startswith("out of memory (")
    assert f"{LAST} Go on with less, for example --set train.memory_gb=4" in str(found)


def test_only_the_first_line_of_a_long_message_is_kept() -> None:
    found = machine_error(RuntimeError("out of memory: first\nsecond"), LAST)
    assert found is not None
    assert "first" in str(found)
    assert "second" not in str(found)


@pytest.mark.parametrize("error", OTHERS)
def test_anything_else_is_not_the_machines_fault(error: Exception) -> None:
    assert machine_error(error, LAST) is None
