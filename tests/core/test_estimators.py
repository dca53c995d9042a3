"""pass@k by enumeration, majority with ties, intervals against known values."""

from __future__ import annotations

import itertools
import math

import pytest

from assay.core.estimators import (
    Z_95,
    majority_is_correct,
    mean_interval,
    pass_at_k,
    sign_flip_p_value,
    wilson_interval,
)


@pytest.mark.parametrize("n", range(1, 9))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(n: int) -> None:
    for correct in range(n + 1):
        samples = [i < correct for i in range(n)]
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(samples, k))
            expected = sum(any(subset) for subset in subsets) / len(subsets)
            assert pass_at_k(n, correct, k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_of_large_n_against_binomials() -> None:
    assert pass_at_k(1000, 10, 100) == pytest.approx(1 - math.comb(990, 100) / math.comb(1000, 100), abs=1e-12)
    assert pass_at_k(200, 20, 1) == pytest.approx(0.1, abs=1e-12)


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 1, 0), (4, 1, 5), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_pass_at_k_refuses_what_cannot_be(n: int, correct: int, k: int) -> None:
    with pytest.raises(ValueError, match="between"):
        pass_at_k(n, correct, k)


@pytest.mark.parametrize(
    ("answers", "correct", "expected"),
    [
        (["a"], [True], 1.0),
        (["a", "b", "a"], [False, True, False], 0.0),
        (["a", "b", "a"], [True, False, True], 1.0),
        (["a", "b"], [True, False], 0.5),
        (["a", "b", "c"], [False, True, False], 1 / 3),
        (["a", "b", "b", "c", "c"], [True, False, False, True, True], 0.5),
        ([None, None, "42"], [False, False, True], 0.0),
        ([(1, 2), (1, 2), (2, 1)], [True, True, False], 1.0),
    ],
)
def test_majority(answers: list[object], correct: list[bool], expected: float) -> None:
    assert majority_is_correct(answers, correct) == pytest.approx(expected)
    assert majority_is_correct(answers[::-1], correct[::-1]) == pytest.approx(expected)


def test_majority_refuses_nothing_and_unequal_lengths() -> None:
    with pytest.raises(ValueError, match="no answers"):
        majority_is_correct([], [])
    with pytest.raises(ValueError, match="zip"):
        majority_is_correct(["a", "b"], [True])


@pytest.mark.parametrize(
    ("share", "n", "low", "high"),
    [  # Newcombe 1998, Statistics in Medicine 17, table I, method 3 (first three rows); the textbook's 0 of 10
        (81 / 263, 263, 0.2553, 0.3662),
        (15 / 148, 148, 0.0624, 0.1605),
        (1 / 29, 29, 0.0061, 0.1718),
        (0.0, 10, 0.0, 0.2775),
        (1.0, 10, 0.7225, 1.0),
        (0.5, 10, 0.2366, 0.7634),
    ],
)
def test_wilson_against_published_values(share: float, n: int, low: float, high: float) -> None:
    assert wilson_interval(share, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_holds_the_shares_whose_score_test_is_within_z() -> None:
    """Its ends p solve |share - p| = z sqrt(p (1 - p) / n)."""
    for share, n in ((0.2, 7), (0.9, 40), (0.01, 300)):
        for p in wilson_interval(share, n):
            assert abs(share - p) == pytest.approx(Z_95 * math.sqrt(p * (1 - p) / n), rel=1e-9)


def test_intervals_over_nothing_and_over_one() -> None:
    assert wilson_interval(0.0, 0) == (0.0, 1.0)
    assert all(math.isnan(x) for x in mean_interval([]))
    assert mean_interval([0.25]) == (0.25, 0.25, 0.25)


def test_mean_interval_by_hand() -> None:
    """[1, 2, 4, 5]: mean 3, sample variance 10 / 3, standard error sqrt(5 / 6)."""
    mean, low, high = mean_interval([1, 2, 4, 5])
    half = 1.959964 * math.sqrt(5 / 6)
    assert (mean, low, high) == pytest.approx((3, 3 - half, 3 + half), abs=1e-6)
    assert mean_interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([], 1.0),
        ([0, 0], 1.0),
        ([1], 1.0),
        ([1, 1], 0.5),  # ++ and -- of 4 patterns
        ([1, 1, 1, 1, 1, 1], 2 / 64),
        ([3, -1], 1.0),  # |3 - 1| = 2: all of 4, 2, 2, 4
        ([3, 1, 0], 0.5),
        ([2, 2, 1], 2 / 8),
        ([2, -2, 5], 6 / 8),  # 9, 5, 5, 1 and their negatives
    ],
)
def test_sign_flips_counted_by_hand(differences: list[int], p: float) -> None:
    assert sign_flip_p_value(differences) == pytest.approx(p)
    assert sign_flip_p_value([-d for d in differences]) == pytest.approx(p)


def test_sign_flips_against_enumeration_and_mcnemar() -> None:
    differences = [5, -3, 2, 2, -1, 4, 0, 1]
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((-1, 1), repeat=8)
    ]
    assert sign_flip_p_value(differences) == pytest.approx(sum(s >= 10 for s in sums) / 256)
    # 15 discordant pairs, 3 of them one way: twice the binomial tail.
    mcnemar = 2 * sum(math.comb(15, i) for i in range(4)) / 2**15
    assert sign_flip_p_value([1] * 12 + [-1] * 3 + [0] * 50) == pytest.approx(mcnemar)


def test_sign_flips_of_many_pairs_agree_with_the_normal_approximation() -> None:
    differences = [3] * 120 + [-3] * 80 + [8] * 30 + [-8] * 20
    z = 200 / math.sqrt(sum(d * d for d in differences))
    assert sign_flip_p_value(differences) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.05)
