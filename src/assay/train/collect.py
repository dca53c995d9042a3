"""Collecting a step's samples: rollouts from the engine, verified as they come in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from assay.rollout.engine import Engine
from assay.types import Request, Row, Sample, Verdict

Verify = Callable[[Row, str], Verdict]
Decode = Callable[[tuple[int, ...]], str]


def collect(
    engine: Engine,
    requests: Sequence[Request],
    rows: Sequence[Row],
    decode: Decode,
    verify: Verify,
    on_progress: Callable[[int, int], None],
) -> list[Sample]:
    """Samples in the order of ``requests``; ``rows`` aligns with them.

    ``on_progress`` is called with (done, of how many).
    """
    row_of = {request.sample_id: row for request, row in zip(requests, rows, strict=True)}
    done: dict[int, Sample] = {}
    engine.submit(requests)
    while len(done) < len(requests):
        for trajectory in engine.poll():
            row = row_of[trajectory.sample_id]
            text = decode(trajectory.completion_ids)
            done[trajectory.sample_id] = Sample(trajectory, row, text, verify(row, text))
        on_progress(len(done), len(requests))
    return [done[request.sample_id] for request in requests]
