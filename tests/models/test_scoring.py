"""Packed scoring is one plain forward pass per completion; micro-batches lose and repeat nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.models.learner import TrainGroup, TrainSample
from assay.models.packing import TokenIds, packed_length
from assay.models.policy import Policy
from assay.models.scoring import micro_batches, packed_logprobs, split

PROMPT = (5, 6, 7, 8, 9)
DUPLICATES = [(10, 11, 12), (10, 11, 12), (13, 2), (10, 11, 12)]
PREFIXES = [(10,), (10, 11), (10, 11, 12, 13, 14, 15), (10, 11, 12)]
LENGTH_ONE = [(4,), (5,), (4,), (63,)]
CASES = {
    "duplicates": [(PROMPT, DUPLICATES)],
    "prefixes of one another": [(PROMPT, PREFIXES)],
    "length one": [(PROMPT, LENGTH_ONE), ((5,), LENGTH_ONE)],
    "prompts that begin alike": [(PROMPT, DUPLICATES), ((*PROMPT, 10), PREFIXES), (PROMPT[:3], LENGTH_ONE)],
    "prompt and completion make another prompt": [((5, 6), [(7, 8, 9, 10, 2)]), (PROMPT, [(10, 2), (11, 2)])],
}


def group(prompt: TokenIds, completions: list[TokenIds]) -> TrainGroup:
    samples = tuple(TrainSample(ids, (True,) * len(ids), 1.0, (0.0,) * len(ids)) for ids in completions)
    return TrainGroup(prompt, samples, sum(map(len, completions)))


def row_logprobs(model: Any, prompt: TokenIds, completion: TokenIds, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of one completion from one plain row."""
    logits_TV = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / temperature
    logprobs_TV = torch.log_softmax(logits_TV, dim=-1)
    chosen_T = logprobs_TV.gather(-1, torch.tensor(completion)[:, None])[:, 0]
    return chosen_T, -(logprobs_TV.exp() * logprobs_TV).sum(dim=-1)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_packed_is_one_plain_row_per_completion(
    load: Callable[..., Policy], plain: Callable[..., Any], architecture: str, case: str
) -> None:
    groups = [group(prompt, completions) for prompt, completions in CASES[case]]
    model = plain(architecture)
    for temperature in (1.0, 0.7):
        logprobs, entropies = packed_logprobs(load(architecture), groups, temperature)
        expected = [row_logprobs(model, g.prompt_ids, s.completion_ids, temperature) for g in groups for s in g.samples]
        assert len(logprobs) == len(entropies) == len(expected)
        for logprobs_T, entropies_T, (chosen_T, spread_T) in zip(logprobs, entropies, expected, strict=True):
            torch.testing.assert_close(logprobs_T, chosen_T, rtol=0, atol=1e-5)
            torch.testing.assert_close(entropies_T, spread_T, rtol=0, atol=1e-5)


@torch.no_grad()
def test_random_groups_of_two_letters_share_much_and_still_score_alike(
    load: Callable[..., Policy], plain: Callable[..., Any]
) -> None:
    generator = torch.Generator().manual_seed(0)

    def ids(longest: int) -> TokenIds:
        length = int(torch.randint(1, longest + 1, (), generator=generator))
        return tuple(torch.randint(4, 6, (length,), generator=generator).tolist())

    groups = [group(ids(6), [ids(12) for _ in range(6)]) for _ in range(5)]
    model = plain()
    logprobs, _ = packed_logprobs(load(), groups, 1.0)
    expected = [row_logprobs(model, g.prompt_ids, s.completion_ids, 1.0)[0] for g in groups for s in g.samples]
    torch.testing.assert_close(torch.cat(logprobs), torch.cat(expected), rtol=0, atol=1e-5)


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple)
GROUPS = st.lists(st.tuples(TOKENS, st.lists(TOKENS, min_size=1, max_size=6)), min_size=1, max_size=5)


def computed(groups: list[TrainGroup]) -> int:
    return packed_length([g.prompt_ids + s.completion_ids[:-1] for g in groups for s in g.samples])


@settings(derandomize=True, max_examples=100, deadline=None)
@given(GROUPS, st.integers(1, 40))
def test_micro_batches_hold_every_completion_once_in_order_and_are_bounded(
    asked: list[tuple[TokenIds, list[TokenIds]]], most: int
) -> None:
    groups = [group(prompt, completions) for prompt, completions in asked]
    batches = micro_batches(groups, most)
    assert [(g.prompt_ids, s) for batch in batches for g in batch for s in g.samples] == [
        (g.prompt_ids, s) for g in groups for s in g.samples
    ]
    for batch in batches:
        assert computed(batch) <= most or sum(len(g.samples) for g in batch) == 1
    unsplit = micro_batches(groups, most, whole=True)
    assert [g for batch in unsplit for g in batch] == groups
    assert all(computed(batch) <= most or len(batch) == 1 for batch in unsplit)


def test_a_part_of_a_group_still_knows_the_whole_groups_loss_tokens() -> None:
    whole = group(PROMPT, PREFIXES)
    parts = split(whole, 7)
    assert len(parts) > 1
    assert {(p.prompt_ids, p.group_loss_tokens) for p in parts} == {(PROMPT, 12)}


def test_a_completion_over_the_bound_stands_alone() -> None:
    long = tuple(range(10, 30))
    parts = split(group((5,), [(6,), long, (7,)]), 8)
    assert [[s.completion_ids for s in p.samples] for p in parts] == [[(6,)], [long], [(7,)]]


def test_what_fits_is_not_split() -> None:
    groups = [group(PROMPT, DUPLICATES), group(PROMPT, PREFIXES)]
    assert micro_batches(groups, computed(groups)) == [groups]
    assert len(micro_batches(groups, computed(groups) - 1)) == 2
