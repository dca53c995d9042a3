"""A step's completions: drawn prompts, groups asked of the engine, graded; dead groups replaced where asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from assay.curriculum import draw_uniform
from assay.errors import VerifierError
from assay.train.assembly import Job
from assay.train.buffer import Buffer
from assay.train.collect import collect
from assay.train.groups import make_groups
from assay.train.job import overlong_buffer
from assay.train.shaping import with_overlong_penalty
from assay.types import Group, Request, Sample

RESAMPLING_STREAM = 2**62
"""Added to the run's seed to draw the prompts that replace dead groups."""


def gather(job: Job, step: int, buffer: Buffer, on_progress: Callable[[int, int], None]) -> list[Group]:
    """The step's groups. Where dead ones are resampled, groups of further prompts come on top of them."""
    c = job.config
    drawn = draw_uniform(len(job.prompts.rows), c.rollout.prompts_per_step, step, c.seed)
    groups = sample_groups(job, step, 0, drawn, buffer, on_progress)
    refuse_ungraded([s for g in groups for s in g.samples])
    if job.preset.dead_groups != "resample":
        return groups
    for attempt in range(1, c.algorithm.resample_rounds + 1):
        missing = c.rollout.prompts_per_step - sum(not g.dead for g in groups)
        if missing == 0:
            break
        turn = (step - 1) * c.algorithm.resample_rounds + attempt
        drawn = draw_uniform(len(job.prompts.rows), c.rollout.prompts_per_step, turn, c.seed + RESAMPLING_STREAM)
        groups += sample_groups(job, step, len(groups), drawn[:missing], buffer, on_progress)
    return groups


def sample_groups(
    job: Job, step: int, first: int, drawn: Sequence[int], buffer: Buffer, on_progress: Callable[[int, int], None]
) -> list[Group]:
    """One graded group of each prompt in ``drawn``; ``first`` groups of the step came before them."""
    c = job.config
    requests = ask(job, step, first, drawn)
    buffer.ask(len(requests))
    rows = [job.prompts.rows[i] for i in drawn for _ in range(c.algorithm.group_size)]
    samples = job.grade(collect(job.engine, requests, rows, job.policy.decode, job.verify, on_progress))
    limit = c.rollout.max_new_tokens
    return make_groups(
        with_overlong_penalty(samples, max_length=limit, buffer=overlong_buffer(c, job.preset)), job.preset
    )


def ask(job: Job, step: int, first: int, drawn: Sequence[int]) -> list[Request]:
    """Requests for the groups from the step's ``first`` on; sample ids never repeat over the whole run."""
    c, G = job.config, job.config.algorithm.group_size
    groups_of_step = c.rollout.prompts_per_step * (
        1 + (c.algorithm.resample_rounds if job.preset.dead_groups == "resample" else 0)
    )
    start = (step - 1) * groups_of_step + first
    return [
        Request(
            sample_id=(start + p) * G + g,
            group_id=start + p,
            prompt_ids=job.prompts.ids[row],
            max_new_tokens=c.rollout.max_new_tokens,
            temperature=c.rollout.temperature,
            seed=c.seed,
        )
        for p, row in enumerate(drawn)
        for g in range(G)
    ]


def refuse_ungraded(samples: Sequence[Sample]) -> None:
    """Raise VerifierError if not one completion of the step could be graded: a run without rewards learns nothing."""
    if all(math.isnan(s.verdict.reward) for s in samples):
        raise VerifierError(
            f"none of the step's {len(samples)} completions could be graded; the first: {samples[0].verdict.reason}"
        )
