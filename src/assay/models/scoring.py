"""Log-probs of given completions, each group packed behind its one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from assay.core.logprob import token_logprobs
from assay.models.learner import TrainGroup
from assay.models.packing import Span, Tree, pack
from assay.models.policy import Policy


def packed_logprobs(
    policy: Policy, groups: Sequence[TrainGroup], temperature: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probs and entropies (each [T_i]) of all completions, in order, in one forward pass.

    A completion's last token predicts nothing, so it is not computed; the vocabulary head runs only where a
    completion's token is predicted.
    """
    trees = [Tree(g.prompt_ids, tuple(s.completion_ids[:-1] for s in g.samples)) for g in groups]
    row = pack(trees, policy.device)
    hidden_NH = policy.hidden(row.input_ids, row.position_ids, row.layout)[0]
    predictors = list(chain.from_iterable(_predictors(span) for span in row.spans))
    completions = [s.completion_ids for g in groups for s in g.samples]
    targets = torch.tensor(list(chain.from_iterable(completions)), device=policy.device)
    head = policy.head
    with policy.autocast():
        logprobs_N, entropies_N = token_logprobs(
            hidden_NH[torch.tensor(predictors, device=policy.device)],
            head.weight_VH,
            targets,
            temperature=temperature,
            softcap=head.softcap,
            bias_V=head.bias_V,
        )
    lengths = [len(c) for c in completions]
    return list(logprobs_N.split(lengths)), list(entropies_N.split(lengths))


def micro_batches(groups: Sequence[TrainGroup], max_tokens: int) -> list[list[TrainGroup]]:
    """Groups (split where they must be) in batches of at most ``max_tokens`` positions, in order."""
    batches: list[list[TrainGroup]] = []
    used = 0
    for part in chain.from_iterable(group.split(max_tokens) for group in groups):
        if not batches or used + part.tokens > max_tokens:
            batches.append([])
            used = 0
        batches[-1].append(part)
        used += part.tokens
    return batches


def _predictors(span: Span) -> list[int]:
    """Positions whose hidden state predicts each completion token: the prompt's last, then the branch's own."""
    last = span.start + span.prefix - 1
    places = []
    for start, length in zip(span.branch_starts, span.branches, strict=True):
        places += [last, *range(start, start + length)]
    return places
