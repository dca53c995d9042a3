"""From rewards of completions to advantages of tokens, over the whole batch of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from assay.core.advantage import discounted_returns, token_rewards, whiten
from assay.core.kl import KLS
from assay.core.presets import Preset
from assay.models.learner import TrainGroup, TrainSample


def with_token_advantages(groups: Sequence[TrainGroup], preset: Preset, beta: float) -> list[TrainGroup]:
    """The groups with ``advantages`` for each token, where the preset has them.

    ``beta`` is the weight of the KL in the reward, 0 for none. Estimates by token read ``advantage`` as the
    completion's reward; with beta they read ``old_logprobs`` and ``ref_logprobs``.
    """
    samples = [s for g in groups for s in g.samples]
    if not samples or (preset.estimate == "group" and not preset.whiten):
        return list(groups)
    mask_BT = _dense([torch.tensor(s.mask) for s in samples])
    scores_B = torch.tensor([s.advantage for s in samples], dtype=torch.float64)
    if preset.estimate == "group":
        advantages_BT = torch.where(mask_BT, scores_B[:, None], 0.0)
    else:
        rewards_BT = token_rewards(scores_B, _kl(samples, preset, mask_BT, beta), mask_BT, beta)
        advantages_BT = discounted_returns(rewards_BT, mask_BT, gamma=preset.gamma)
    if preset.whiten:
        # Less the batch's mean, the zeros of a dead group would become a signal.
        alive_B = torch.tensor([not g.dead for g in groups for _ in g.samples])
        advantages_BT = whiten(advantages_BT, mask_BT & alive_B[:, None], ddof=preset.ddof)
    return _spread(groups, advantages_BT)


def _kl(samples: Sequence[TrainSample], preset: Preset, mask_BT: Tensor, beta: float) -> Tensor:
    if beta == 0:
        return torch.zeros(mask_BT.shape, dtype=torch.float64)
    old_BT = _dense([_given(s.old_logprobs, "old log-probs") for s in samples])
    ref_BT = _dense([_given(s.ref_logprobs, "reference log-probs") for s in samples])
    return KLS[preset.kl](old_BT, ref_BT).double()


def _given(values: Tensor | None, what: str) -> Tensor:
    if values is None:
        raise ValueError(f"the samples carry no {what}, and their advantages are made of them")
    return values.cpu()


def _dense(rows: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(rows), batch_first=True)


def _spread(groups: Sequence[TrainGroup], advantages_BT: Tensor) -> list[TrainGroup]:
    """Each row back to its sample, without padding."""
    row = iter(range(len(advantages_BT)))

    def with_rows(sample: TrainSample) -> TrainSample:
        return replace(sample, advantages=advantages_BT[next(row), : len(sample.completion_ids)])

    return [replace(g, samples=tuple(with_rows(s) for s in g.samples)) for g in groups]
