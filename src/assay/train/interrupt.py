"""Ctrl-C as a request to stop at the next safe point; a second one stops at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from assay.errors import Interrupted

STDERR = 2
MESSAGE = b"\nstopping at the next safe point (again: at once) ...\n"


class StopRequest:
    """While entered, SIGINT and SIGTERM set a flag, and ``check`` raises Interrupted once it is set."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        # Signals can only be handled in the main thread; elsewhere (a notebook's worker) there is nothing to catch.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def check(self) -> None:
        if self.requested:
            raise Interrupted("interrupted")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        for previous, handler in self._previous.items():
            # A job that a script put into the background inherits SIGINT ignored, but the second one is meant.
            signal.signal(previous, signal.default_int_handler if handler == signal.SIG_IGN else handler)
        # Not through a stream: the signal may have come in the middle of a write to it.
        os.write(STDERR, MESSAGE)
