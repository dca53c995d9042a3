"""Which exceptions mean that the machine failed, not the program."""

from __future__ import annotations

import errno

import torch

from assay.errors import MachineError

DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
DISK_WORDS = ("no space left on device", "disk quota exceeded", "file too large")
MEMORY_WORDS = ("can't allocate memory", "not enough memory", "cannot allocate memory", "out of memory")


def machine_error(error: Exception, last_checkpoint: str = "Nothing was started.") -> MachineError | None:
    """A MachineError that names the last whole checkpoint, or None if the machine is not to blame.

    Libraries wrap the system's error in types of their own, so its words are looked for as well.
    """
    words = str(error).lower()
    if (isinstance(error, OSError) and error.errno in DISK) or any(w in words for w in DISK_WORDS):
        return MachineError(f"the disk is full ({error}). {last_checkpoint} Free some space, then go on.")
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(w in words for w in MEMORY_WORDS):
        return MachineError(
            f"out of memory ({str(error).splitlines()[0] if str(error) else type(error).__name__}). {last_checkpoint} "
            f"Go on with less, for example --set train.memory_gb=4 (smaller micro-batches) or rollout.kv_cache_gb."
        )
    return None
