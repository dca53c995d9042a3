"""Sampling: randomness from counters alone, and tokens from the distribution that is reported."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from assay.rollout import sampling
from assay.rollout.sampling import sample, uniform
from assay.types import Request

INF = math.inf
ALMOST_ONE = 1 - 2**-53


def request(sample_id: int = 0, temperature: float = 1.0, seed: int = 0) -> Request:
    return Request(sample_id, 0, (5,), 8, temperature, seed)


@pytest.fixture
def fixed_uniform(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    def fix(value: float) -> None:
        monkeypatch.setattr(sampling, "uniform", lambda *_: value)

    return fix


def test_uniform_depends_on_its_counters_alone() -> None:
    before = [uniform(1, s, t) for s in range(3) for t in range(3)]
    np.random.default_rng(0).random(7)
    torch.rand(7)
    after = [uniform(1, s, t) for s in reversed(range(3)) for t in reversed(range(3))]
    assert before == after[::-1]


def test_every_counter_changes_the_number() -> None:
    counters = [(seed, s, t) for seed in range(4) for s in range(4) for t in range(4)]
    assert len({uniform(*c) for c in counters}) == len(counters)
    assert uniform(0, 1, 2) != uniform(1, 0, 2)


def test_large_counters_are_taken() -> None:
    assert 0 <= uniform(2**63, 2**40, 100_000) < 1


@pytest.mark.parametrize("axis", range(3))
def test_numbers_along_each_counter_look_uniform(axis: int) -> None:
    counters = np.zeros((4000, 3), dtype=int)
    counters[:, axis] = np.arange(4000)
    numbers = np.array([uniform(*map(int, c)) for c in counters])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts, _ = np.histogram(numbers, bins=16, range=(0, 1))
    assert ((counts - 250) ** 2 / 250).sum() < 37.7  # chi-square of 15 degrees, 0.1 %
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.05


@pytest.mark.parametrize("number", [0.0, 0.25, 0.5, 0.999, ALMOST_ONE])
@pytest.mark.parametrize("temperature", [1.0, 0.3, 5.0])
def test_a_token_of_probability_zero_is_never_drawn(
    fixed_uniform: Callable[[float], None], number: float, temperature: float
) -> None:
    fixed_uniform(number)
    logits_LV = torch.tensor([[-INF, -INF, 1.0, -INF, 2.0, -INF], [-1e9, 0.0, -1e9, -1e9, -1e9, -1e9]])
    tokens, logprobs = sample(logits_LV, [0, 1], [request(0, temperature), request(1, temperature)], [0, 0])
    assert tokens[0] in (2, 4)
    assert tokens[1] == 1
    assert torch.isfinite(logprobs).all()


def test_the_number_falls_into_the_cumulative_distribution(fixed_uniform: Callable[[float], None]) -> None:
    logits_LV = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    for number, token in [(0.0, 0), (0.0999, 0), (0.1001, 1), (0.2999, 1), (0.3001, 2), (0.6001, 3), (ALMOST_ONE, 3)]:
        fixed_uniform(number)
        assert sample(logits_LV, [0], [request()], [0])[0].tolist() == [token]


def test_requests_that_share_a_lane_draw_as_from_lanes_of_their_own() -> None:
    logits_LV = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    lanes = [2, 0, 2, 2, 1, 0]
    temperatures = [1.0, 0.5, 0.5, 1.0, 0.0, 2.0]
    requests = [request(i, t) for i, t in enumerate(temperatures)]
    indices = [0, 1, 2, 3, 4, 5]
    tokens, logprobs = sample(logits_LV, lanes, requests, indices)
    for i, (lane, r) in enumerate(zip(lanes, requests, strict=True)):
        token, logprob = sample(logits_LV[lane : lane + 1], [0], [r], [i])
        assert tokens[i] == token
        torch.testing.assert_close(logprobs[i : i + 1], logprob)


def test_the_reported_logprob_is_of_the_distribution_at_the_requests_temperature() -> None:
    logits_LV = torch.randn(1, 20, generator=torch.Generator().manual_seed(0))
    for temperature in (0.5, 1.0, 2.0):
        tokens, logprobs = sample(logits_LV, [0], [request(3, temperature)], [0])
        torch.testing.assert_close(logprobs, torch.log_softmax(logits_LV[0] / temperature, -1)[tokens])


def test_greedy_takes_the_largest_logit_and_reports_it_at_temperature_one() -> None:
    logits_LV = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]])
    tokens, logprobs = sample(logits_LV, [0, 1], [request(0, 0.0), request(1, 0.0)], [0, 0])
    assert tokens.tolist() == [1, 0]
    torch.testing.assert_close(logprobs, torch.log_softmax(logits_LV, -1)[[0, 1], tokens])


def test_logits_of_lower_precision_are_sampled_in_float32() -> None:
    logits_LV = torch.randn(1, 20, generator=torch.Generator().manual_seed(0)).bfloat16()
    _, logprobs = sample(logits_LV, [0], [request()], [0])
    assert logprobs.dtype == torch.float32
