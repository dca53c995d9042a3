"""pass@k, maj@k and confidence intervals, on plain numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from fractions import Fraction

Z_95 = 1.959963984540054


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased chance that one of k of the n samples is correct (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the number of samples {n}, got {k}")
    if not 0 <= correct <= n:
        raise ValueError(f"correct must be between 0 and {n}, got {correct}")
    if n - correct < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - correct + 1, n + 1))


def majority_is_correct(answers: Sequence[Hashable], correct: Sequence[bool]) -> float:
    """1 if the most frequent answer is correct, 0 if not; ties share: the correct part of the tied answers."""
    counts = Counter(answers)
    if not counts:
        raise ValueError("majority of no answers")
    most = max(counts.values())
    tied = [answer for answer, count in counts.items() if count == most]
    right = {answer for answer, ok in zip(answers, correct, strict=True) if ok}
    return sum(answer in right for answer in tied) / len(tied)


def wilson_interval(share: float, n: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson score interval of a share over n independent prompts (Wilson 1927); 95 % by default.

    For means of values in [0, 1] that are not 0 or 1 it is conservative, since their variance is smaller.
    """
    if n == 0:
        return (0.0, 1.0)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # By its formula it holds the share; at 0 and 1 rounding could leave it out.
    return (max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def mean_interval(values: Sequence[float], z: float = Z_95) -> tuple[float, float, float]:
    """(mean, low, high) by the normal approximation, over independent prompts. NaN over nothing."""
    n = len(values)
    if n == 0:
        return (math.nan, math.nan, math.nan)
    mean = math.fsum(values) / n
    if n == 1:
        return (mean, mean, mean)
    sigma = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    return (mean, mean - z * sigma / math.sqrt(n), mean + z * sigma / math.sqrt(n))


def sign_flip_p_value(differences: Sequence[int]) -> float:
    """Two-sided exact p of paired differences: how often |Σ ±dᵢ| ≥ |Σ dᵢ| if every sign were a fair coin.

    Fisher's randomisation test (The Design of Experiments, 1935, § 21), by counting all 2^n sign patterns.
    For differences of -1, 0 and 1 it is McNemar's exact test. 1 if nothing differs.
    """
    sizes = [abs(d) for d in differences if d]
    observed, total = abs(sum(differences)), sum(sizes)
    # ways[s]: sign patterns whose positive differences add up to s, so that their sum is 2 s - total.
    ways = [1] + [0] * total
    reached = 0
    for size in sizes:
        reached += size
        for s in range(reached, size - 1, -1):
            ways[s] += ways[s - size]
    extreme = sum(count for s, count in enumerate(ways) if abs(2 * s - total) >= observed)
    return float(Fraction(extreme, 2 ** len(sizes)))
