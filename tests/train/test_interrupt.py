"""The first Ctrl-C asks, the second one acts; afterwards the handlers are those that were there before."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from assay.errors import Interrupted
from assay.train.interrupt import StopRequest

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_sets_the_flag_and_nothing_stops_by_itself(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    with StopRequest() as stop:
        stop.check()
        signal.raise_signal(number)
        assert stop.requested
        assert "stopping at the next safe point" in capfd.readouterr().err
        with pytest.raises(Interrupted) as caught:
            stop.check()
        assert caught.value.exit_code == 130


@pytest.mark.parametrize("inherited", [signal.default_int_handler, signal.SIG_IGN])
def test_a_second_interrupt_stops_at_once_also_in_a_background_job(inherited: Any) -> None:
    """A shell script starts its background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, inherited)
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert stop.requested
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_handlers_of_before_come_back(interrupted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "default_int_handler", signal.getsignal(signal.SIGINT))
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopRequest():
        assert [signal.getsignal(number) for number in SIGNALS] != before
        if interrupted:
            signal.raise_signal(signal.SIGTERM)
            assert [signal.getsignal(number) for number in SIGNALS] == before
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_outside_the_main_thread_there_is_nothing_to_catch() -> None:
    seen: list[bool] = []

    def enter() -> None:
        with StopRequest() as stop:
            stop.check()
            seen.append(stop.requested)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [False]
