"""GRPO and its relatives, which have no critic: a completion is judged against its group or its batch.

The step around this is ``train/loop.py``; the formulas are ``core``'s, chosen by the preset.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.models.learner import TrainGroup
from assay.train.assembly import Job
from assay.train.token_advantages import with_token_advantages
from assay.train.update import UpdateResult, Watch, minibatches_of, take_steps, with_logprobs


def improve(job: Job, groups: Sequence[TrainGroup], watch: Watch) -> UpdateResult:
    """Log-probs of reference and learner, advantages of tokens where the preset has them, then the updates.

    With nothing alive the optimiser does not step at all.
    """
    a = job.config.algorithm
    in_loss, in_reward = job.beta
    job.learner.set_beta(in_loss)
    groups = with_logprobs(
        job.learner,
        job.reference,
        groups,
        # After the first step the current log-probs are no longer those of the policy that sampled.
        old=a.minibatches * a.epochs > 1 or in_reward > 0,
        temperature=job.config.rollout.temperature,
        reference_tokens=job.micro_batch_tokens,
    )
    groups = with_token_advantages(groups, job.preset, in_reward)
    batches = minibatches_of(groups, a.minibatches, a.epochs)
    return take_steps(batches, job.learner, max_length=job.config.rollout.max_new_tokens, watch=watch)
