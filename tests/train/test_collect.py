"""Samples come back in the order asked, whatever the order of answers; each is verified as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from assay.errors import Interrupted
from assay.rollout.engine import Engine
from assay.train.collect import collect
from assay.types import Request, Row, Segment, Trajectory, Verdict

ROWS = [Row(f"row-{i}", "p", str(i)) for i in range(4)]
REQUESTS = [Request(100 + i, i // 2, (1, i), 3, 1.0, 0) for i in range(4)]


class FakeEngine:
    """Answers with the request's own number, the last request first, one poll of nothing in between."""

    def __init__(self) -> None:
        self.queue: list[Request] = []
        self.polls = 0

    def submit(self, requests: Sequence[Request]) -> None:
        self.queue = list(requests)

    def poll(self) -> list[Trajectory]:
        self.polls += 1
        if self.polls % 2:
            return []
        r = self.queue.pop()
        answer = Segment((r.prompt_ids[1],), True, (0.0,), 0)
        return [Trajectory(r.sample_id, r.group_id, r.prompt_ids, (answer,), "stop")]


def verify(row: Row, text: str) -> Verdict:
    return Verdict(float(row.answer == text), "ok", row.answer == text)


def test_each_answer_is_verified_against_its_own_row() -> None:
    seen: list[tuple[int, int]] = []
    engine = cast(Engine, FakeEngine())
    samples = collect(engine, REQUESTS, ROWS, lambda ids: str(ids[0]), verify, lambda *at: seen.append(at))
    assert [s.trajectory.sample_id for s in samples] == [100, 101, 102, 103]
    assert [s.row for s in samples] == ROWS
    assert [s.text for s in samples] == ["0", "1", "2", "3"]
    assert all(s.verdict.correct for s in samples)
    assert seen == [(0, 4), (1, 4), (1, 4), (2, 4), (2, 4), (3, 4), (3, 4), (4, 4)]


def test_every_unit_of_work_is_a_safe_point() -> None:
    def stop(done: int, total: int) -> None:
        if done == 1:
            raise Interrupted("now")

    engine = FakeEngine()
    with pytest.raises(Interrupted):
        collect(cast(Engine, engine), REQUESTS, ROWS, lambda ids: str(ids[0]), verify, stop)
    assert engine.polls == 2


def test_rows_that_do_not_align_are_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        collect(cast(Engine, FakeEngine()), REQUESTS, ROWS[:3], str, cast(Any, verify), lambda *_: None)
