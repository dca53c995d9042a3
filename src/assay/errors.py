"""One error class per boundary. Each message says what was wrong, with the numbers, and what to change."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class AssayError(Exception):
    """An error that the user can act on; the command line prints it without a traceback."""

    exit_code = 2


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for a near miss of a known name, or nothing: the middle of an error message."""
    close = get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


class ConfigError(AssayError):
    """The recipe or the command line is wrong."""


class DataError(AssayError):
    """A data source is missing, empty, or has a row that cannot be used."""


class ModelError(AssayError):
    """A model folder or name cannot be loaded, or its architecture is not supported."""


class VerifierError(AssayError):
    """A verifier's name, arguments or module is wrong."""


class EngineError(AssayError):
    """A rollout engine refused a request, or disagrees with the learner."""

    exit_code = 4


class CheckpointError(AssayError):
    """A run folder or checkpoint cannot be read."""


class MachineError(AssayError):
    """The machine failed in mid-run: disk full or out of memory."""

    exit_code = 4


class Interrupted(AssayError):  # noqa: N818 - not an error of anyone
    """The user asked to stop; raised at a safe point."""

    exit_code = 130
