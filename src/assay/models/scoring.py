"""Log-probs of given completions, packed so that nothing is computed twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from assay.core.logprob import token_logprobs
from assay.models.learner import TrainGroup
from assay.models.packing import PackedRow, TokenIds, pack, packed_length
from assay.models.policy import Policy


def packed_logprobs(
    policy: Policy, groups: Sequence[TrainGroup], temperature: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probs and entropies (each [T_i]) of all completions, in order, in one forward pass.

    Each position is computed once, also where several completions share it, and the vocabulary head runs
    only where a completion's token is predicted.
    """
    row = pack(_sequences(groups), policy.device)
    completions = [s.completion_ids for g in groups for s in g.samples]
    predictions = [
        pair
        for places, completion in zip(_predictors(row, groups), completions, strict=True)
        for pair in zip(places, completion, strict=True)
    ]
    # (where it is predicted, token): equal ones need one pass through the head.
    distinct = {pair: i for i, pair in enumerate(dict.fromkeys(predictions))}
    places_M, targets_M = torch.tensor(list(distinct), device=policy.device).reshape(-1, 2).unbind(dim=1)
    hidden_NH = policy.hidden(row.input_ids, row.position_ids, row.layout)[0]
    head = policy.head
    with policy.autocast():
        logprobs_M, entropies_M = token_logprobs(
            hidden_NH.index_select(0, places_M),
            head.weight_VH,
            targets_M,
            temperature=temperature,
            softcap=head.softcap,
            bias_V=head.bias_V,
        )
    of_completions = torch.tensor([distinct[pair] for pair in predictions], device=policy.device)
    lengths = [len(completion) for completion in completions]
    logprobs_N, entropies_N = logprobs_M.index_select(0, of_completions), entropies_M.index_select(0, of_completions)
    return list(torch.split(logprobs_N, lengths)), list(torch.split(entropies_N, lengths))


def packed_states(policy: Policy, groups: Sequence[TrainGroup]) -> list[Tensor]:
    """Last hidden states [T_i, H] from which each token of each completion is predicted, in one forward pass."""
    row = pack(_sequences(groups), policy.device)
    hidden_NH = policy.hidden(row.input_ids, row.position_ids, row.layout)[0]
    predictors = _predictors(row, groups)
    places_N = torch.tensor([place for places in predictors for place in places], device=policy.device)
    return list(torch.split(hidden_NH.index_select(0, places_N), [len(places) for places in predictors]))


def micro_batches(groups: Sequence[TrainGroup], max_tokens: int, *, whole: bool = False) -> list[list[TrainGroup]]:
    """Groups in batches of at most ``max_tokens`` packed positions, in order.

    A group that is larger is split; or, with ``whole``, is a batch of its own.
    """
    batches: list[list[TrainGroup]] = []
    for part in groups if whole else chain.from_iterable(split(group, max_tokens) for group in groups):
        if batches and packed_length(_sequences([*batches[-1], part])) <= max_tokens:
            batches[-1].append(part)
        else:
            batches.append([part])
    return batches


def split(group: TrainGroup, max_tokens: int) -> list[TrainGroup]:
    """Parts of at most ``max_tokens`` packed positions (but at least one completion), each behind the prompt."""
    parts: list[TrainGroup] = []
    for sample in group.samples:
        with_last = replace(group, samples=(*parts[-1].samples, sample)) if parts else None
        if with_last is not None and packed_length(_sequences([with_last])) <= max_tokens:
            parts[-1] = with_last
        else:
            parts.append(replace(group, samples=(sample,)))
    return parts


def _predictors(row: PackedRow, groups: Sequence[TrainGroup]) -> list[tuple[int, ...]]:
    """For each completion, the places in the row from which its tokens are predicted: each one's predecessor."""
    prompts = [g.prompt_ids for g in groups for _ in g.samples]
    return [places[len(prompt) - 1 :] for places, prompt in zip(row.index, prompts, strict=True)]


def _sequences(groups: Sequence[TrainGroup]) -> list[TokenIds]:
    """What is computed: a completion's last token predicts nothing, so it is left out."""
    return [group.prompt_ids + sample.completion_ids[:-1] for group in groups for sample in group.samples]
