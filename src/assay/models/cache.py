"""Built-in models are made once and kept as Hugging Face folders in a cache."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from assay.errors import ModelError


def cache_folder() -> Path:
    """Where built-in models are kept: $ASSAY_CACHE, by default the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "assay"
    return Path(os.environ.get("ASSAY_CACHE", default))


def cached_model(name: str, make: Callable[[Path], None]) -> Path:
    """The folder ``name`` of the cache; ``make`` writes it on the first call.

    Raises ModelError if the cache cannot be written.
    """
    target = cache_folder() / name
    if _is_model(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
        try:
            make(scratch)
            # Renamed whole: a second process either sees no folder or a finished one.
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        # Another process may have made it first.
        if not _is_model(target):
            raise ModelError(
                f"the model cannot be kept in {target}: {error}; name another cache folder in $ASSAY_CACHE"
            ) from error
    return target


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").exists()
