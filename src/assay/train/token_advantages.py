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
    mask_BT = dense([torch.tensor(s.mask) for s in samples])
    if preset.estimate == "group":
        advantages_BT = torch.where(mask_BT, _scores(samples)[:, None], 0.0)
    else:
        rewards_BT = rewards_of_tokens(samples, mask_BT, preset, beta)
        advantages_BT = discounted_returns(rewards_BT, mask_BT, gamma=preset.gamma)
    if preset.whiten:
        # Less the batch's mean, the zeros of a dead group would become a signal.
        alive_B = torch.tensor([not g.dead for g in groups for _ in g.samples])
        advantages_BT = whiten(advantages_BT, mask_BT & alive_B[:, None], ddof=preset.ddof)
    return with_rows(groups, advantages=advantages_BT)


def rewards_of_tokens(samples: Sequence[TrainSample], mask_BT: Tensor, preset: Preset, beta: float) -> Tensor:
    """Each completion's reward on its last token, less beta KL on every one; [B, T]."""
    return token_rewards(_scores(samples), _kl(samples, preset, mask_BT, beta), mask_BT, beta)


def dense(rows: Sequence[Tensor | None]) -> Tensor:
    """Rows of uneven length as [B, T] on the CPU, padded at the end. Raises ValueError for one that is missing."""
    given = [row for row in rows if row is not None]
    if len(given) < len(rows):
        raise ValueError(f"{len(rows) - len(given)} of {len(rows)} samples lack what advantages are made of")
    return pad_sequence(given, batch_first=True).cpu()


def with_rows(groups: Sequence[TrainGroup], **fields: Tensor) -> list[TrainGroup]:
    """The groups with each sample's row of every [B, T], without padding, in the sample's field of that name."""
    row = iter(range(sum(len(g.samples) for g in groups)))

    def filled(sample: TrainSample) -> TrainSample:
        number, length = next(row), len(sample.completion_ids)
        return replace(sample, **{name: values_BT[number, :length] for name, values_BT in fields.items()})  # type: ignore[arg-type]

    return [replace(g, samples=tuple(filled(s) for s in g.samples)) for g in groups]


def _scores(samples: Sequence[TrainSample]) -> Tensor:
    return torch.tensor([s.advantage for s in samples], dtype=torch.float64)


def _kl(samples: Sequence[TrainSample], preset: Preset, mask_BT: Tensor, beta: float) -> Tensor:
    if beta == 0:
        return torch.zeros(mask_BT.shape, dtype=torch.float64)
    old_BT = dense([s.old_logprobs for s in samples])
    ref_BT = dense([s.ref_logprobs for s in samples])
    return KLS[preset.kl](old_BT, ref_BT).double()
