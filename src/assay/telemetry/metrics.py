"""What a step's completions say, as plain numbers: pure, one pass over groups, no tensors.

Two kinds of nothing are kept apart: a reward of NaN (a fault of ours, or a gold that cannot be graded) is left
out of every mean and counted on its own; a mean over nothing is None, never 0.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import get_args

from assay.types import Group, Sample, Status

METRICS: dict[str, str] = {
    "step": "Number of the training step, counted from 1.",
    "reward_mean": "Mean reward of the step's scorable completions.",
    "reward_std": "Population standard deviation of the reward over all scorable completions of the step.",
    "correct_rate": (
        "Share of scorable completions that the verifiers call correct (without any: a reward model's score above 0)."
    ),
    "component/<name>": "Mean score of one reward component over the scorable completions that it applies to.",
    "zero_variance_rate": (
        "Share of scorable groups whose completions all earned the same reward: they carry no learning signal (0 for "
        "algorithms that do not compare within groups)."
    ),
    "informative_rate": (
        "Share of all groups that can teach: their rewards differ, or the algorithm does not compare within groups."
    ),
    "unscorable_rate": "Share of completions without a reward, because of a fault of ours or an unusable gold answer.",
    "unscorable_groups": (
        "Number of groups with too few scorable completions: fewer than two, or none where tokens are judged."
    ),
    "length_mean": "Mean number of tokens in a completion, end token included.",
    "length_max": "Number of tokens in the step's longest completion.",
    "truncation_rate": "Share of completions that were cut off at the token limit.",
    "status/<status>": "Number of completions with this verdict: ok, wrong, timeout, crash or unscorable.",
    "verifier_ms_p50": "Median time that the verifiers took for one completion, in milliseconds.",
    "verifier_ms_p99": "99th percentile of the verifiers' time for one completion, in milliseconds.",
    "loss": "Mean of the minimised loss over the step's updates; its level means little, its jumps do.",
    "kl_k3_mean": "Mean estimate (k3) of the divergence from the reference model per token, in nats.",
    "kl_k3_min": "Smallest k3 estimate of a token; k3 is never negative, so a value below zero is a fault.",
    "kl_linear_tokens": "Number of tokens so far from the reference that k3 was continued along a line.",
    "entropy": (
        "Mean entropy of the policy's next-token distribution over trained completions, in nats: near zero means it "
        "explores no more."
    ),
    "clip_rate": "Share of trained tokens whose policy ratio was clipped, so that they gave no gradient.",
    "ratio_max_deviation": "Largest distance from 1 of a token's ratio of new to old policy probability.",
    "sampler_logprob_gap_mean": (
        "Mean |learner log-prob − sampler log-prob| of the sampled tokens, in nats; large means that the engine "
        "samples from another policy than the one that is trained."
    ),
    "sampler_logprob_gap_max": "The largest such gap of a token, in nats.",
    "dpo_accuracy": (
        "Share of the step's pairs whose chosen completion has the larger implicit reward; in the first step all are "
        "0, and none is larger."
    ),
    "dpo_margin": "Mean implicit reward of the chosen completions less that of the rejected ones.",
    "dpo_reward/<which>": (
        "Mean implicit reward, beta · (log-prob − log-prob under the reference), of the chosen or of the rejected "
        "completions; below zero they have become less likely than they were."
    ),
    "grad_norm": "Norm of the gradient before clipping.",
    "beta": "Weight of the KL to the reference in this step; it changes where algorithm.kl_target is set.",
    "value_loss": "Mean squared error of the critic's values, halved and clipped, over the step's updates.",
    "critic_grad_norm": "Norm of the critic's gradient before clipping.",
    "explained_variance": (
        "Share of the variance of what was earned (discounted rewards to go, KL included) that the critic knew before "
        "the step: 1 all, 0 nothing, negative worse than a constant."
    ),
    "explained_variance_early": (
        "The same over the first half of each completion: near 0 there while the whole is high is value collapse, a "
        "critic that knows the outcome only once it is written."
    ),
    "value_spread": "Standard deviation of the critic's values over tokens, in reward; near 0 it says one number.",
    "return_spread": "Standard deviation of what was earned from each token on, in reward.",
    "learning_rate": "Learning rate of the step's last optimiser update.",
    "skipped_updates": "Number of optimiser updates (of a critic too) left out because their gradient was not finite.",
    "tokens_per_second": (
        "Tokens handled in a second: generated ones, verification included (RL), or trained ones (supervised, pairs)."
    ),
    "seconds": "Wall-clock time of the whole step, in seconds.",
    "seconds_rollout": "Part of the step spent on generating and verifying, in seconds.",
    "seconds_update": "Part of the step spent on advantages, gradients, and handing over the weights, in seconds.",
    "samples_total": "Completions (or rows, in supervised learning and with pairs) since the start of the run.",
    "trained_samples": "Completions that gave gradients, since the start of the run.",
    "canary_gap": "Largest difference between engine and learner log-probs on the fixed canary tokens, in nats.",
}
"""One sentence for each field of metrics.jsonl; a name such as ``component/<name>`` stands for a family."""

FAMILIES = {key.split("/")[0]: key for key in METRICS if "/" in key}


def explain(key: str) -> str | None:
    """The sentence for a field of metrics.jsonl, families included; None for a field that nobody explained."""
    family, slash, _ = key.partition("/")
    return METRICS.get(FAMILIES.get(family, key) if slash else key)


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float | None]:
    """The step's metrics that depend on its completions alone.

    The state of each group comes from the one guard, through ``Group.state``; nothing is judged again here.
    """
    samples = [sample for group in groups for sample in group.samples]
    scorable = [sample for sample in samples if not math.isnan(sample.verdict.reward)]
    rewards = [sample.verdict.reward for sample in scorable]
    milliseconds = [s.verdict.milliseconds for s in samples if not math.isnan(s.verdict.milliseconds)]
    lengths = [len(s.trajectory.completion_ids) for s in samples]
    return {
        "reward_mean": mean(rewards),
        "reward_std": standard_deviation(rewards),
        "correct_rate": mean(s.verdict.correct for s in scorable),
        **_components(scorable),
        **_states(groups),
        "unscorable_rate": mean(math.isnan(s.verdict.reward) for s in samples),
        "length_mean": mean(lengths),
        "length_max": float(max(lengths)) if lengths else None,
        "truncation_rate": mean(s.trajectory.finish_reason == "length" for s in samples),
        **_statuses(samples),
        "verifier_ms_p50": percentile(milliseconds, 50),
        "verifier_ms_p99": percentile(milliseconds, 99),
    }


def preference_metrics(chosen_rewards: Sequence[float], rejected_rewards: Sequence[float]) -> dict[str, float | None]:
    """What the implicit rewards of a step's pairs say."""
    pairs = list(zip(chosen_rewards, rejected_rewards, strict=True))
    return {
        "dpo_accuracy": mean(chosen > rejected for chosen, rejected in pairs),
        "dpo_margin": mean(chosen - rejected for chosen, rejected in pairs),
        "dpo_reward/chosen": mean(chosen_rewards),
        "dpo_reward/rejected": mean(rejected_rewards),
    }


def mean(values: Iterable[float]) -> float | None:
    """Arithmetic mean, or None over nothing."""
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else None


def standard_deviation(values: Sequence[float]) -> float | None:
    """Population standard deviation (divided by n), or None over nothing."""
    centre = mean(values)
    if centre is None:
        return None
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / len(values))


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The percentile by linear interpolation between ranks, as numpy's default; None over nothing."""
    if not values:
        return None
    ranked = sorted(values)
    position = (len(ranked) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (position - below)


def _components(scorable: Sequence[Sample]) -> dict[str, float | None]:
    values: dict[str, list[float]] = defaultdict(list)
    for sample in scorable:
        for name, value in sample.verdict.components.items():
            if not math.isnan(value):
                values[name].append(value)
    return {f"component/{name}": mean(values[name]) for name in sorted(values)}


def _states(groups: Sequence[Group]) -> dict[str, float | None]:
    count = Counter(group.state for group in groups)
    return {
        "zero_variance_rate": mean(g.state == "zero_variance" for g in groups if g.state != "unscorable"),
        "informative_rate": mean(g.state == "informative" for g in groups),
        "unscorable_groups": float(count["unscorable"]),
    }


def _statuses(samples: Sequence[Sample]) -> dict[str, float | None]:
    count = Counter(sample.verdict.status for sample in samples)
    return {f"status/{status}": float(count[status]) for status in get_args(Status)}
