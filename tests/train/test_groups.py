"""Groups are made by id, judged by the one guard, and only samples that can teach reach the learner."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
import torch

from assay.core.presets import PRESETS, Preset
from assay.core.zero_variance import is_zero_variance
from assay.telemetry.metrics import rollout_metrics
from assay.train.groups import denominators_of, make_groups, to_train
from assay.types import Sample

GRPO = PRESETS["grpo"]
NAN = math.nan


@pytest.fixture
def groups_of(sample: Callable[..., Sample]) -> Callable[..., list[Sample]]:
    """Samples of several groups, one list of rewards each."""

    def make(*rewards: Sequence[float]) -> list[Sample]:
        return [sample(10 * p + g, p, reward) for p, row in enumerate(rewards) for g, reward in enumerate(row)]

    return make


def test_the_order_of_arrival_does_not_matter(groups_of: Callable[..., list[Sample]]) -> None:
    samples = groups_of((1, 0, 0, 1), (0, 0, 1), (NAN, 1, 0), (0.5, 0.5))
    expected = make_groups(samples, GRPO)
    assert [g.group_id for g in expected] == [0, 1, 2, 3]
    for seed in range(5):
        shuffled = random.Random(seed).sample(samples, len(samples))
        # repr: the NaN of an unscorable reward is not equal to itself.
        assert repr(make_groups(shuffled, GRPO)) == repr(expected)


def test_a_group_is_judged_by_its_own_rewards_alone(groups_of: Callable[..., list[Sample]]) -> None:
    together = make_groups(groups_of((1, 0, 0, 0), (100, 90, 80), (0, 0)), GRPO)
    for p, rewards in enumerate(((1, 0, 0, 0), (100, 90, 80), (0, 0))):
        (alone,) = make_groups(groups_of(rewards), GRPO)
        assert together[p].advantages == alone.advantages
        assert together[p].state == alone.state


def test_advantages_are_those_of_the_formula(groups_of: Callable[..., list[Sample]]) -> None:
    rewards = (1, 0, 0, 0)
    # mean 1/4, population sigma sqrt(3)/4
    sigma = math.sqrt(3) / 4
    grpo = [0.75 / (sigma + 1e-6), *[-0.25 / (sigma + 1e-6)] * 3]
    for preset, expected in (("grpo", grpo), ("dr_grpo", [0.75, -0.25, -0.25, -0.25]), ("rloo", [1, *[-1 / 3] * 3])):
        (group,) = make_groups(groups_of(rewards), PRESETS[preset])
        assert group.advantages == pytest.approx(expected, rel=1e-12)
        assert group.state == "informative"


def test_sample_sigma_is_the_presets_choice(groups_of: Callable[..., list[Sample]]) -> None:
    (group,) = make_groups(groups_of((1, 0)), Preset(ddof=1, advantage_eps=0.0))
    assert group.advantages == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)], rel=1e-12)


def test_unscorable_members_are_left_out_of_the_statistics(groups_of: Callable[..., list[Sample]]) -> None:
    (group,) = make_groups(groups_of((1, NAN, 0, NAN)), GRPO)
    assert group.advantages == pytest.approx([1, 0, -1, 0], abs=1e-5)
    assert (group.advantages[1], group.advantages[3]) == (0.0, 0.0)
    assert group.state == "informative"
    kept, dropped = to_train([group], "drop")
    assert [s.advantage for s in kept[0].samples] == [group.advantages[0], group.advantages[2]]
    assert dropped == {"unscorable": 2}


@pytest.mark.parametrize("rewards", [(NAN, NAN), (NAN, 1.0), (1.0,)])
def test_fewer_than_two_scorable_members_are_an_unscorable_group(
    rewards: tuple[float, ...], groups_of: Callable[..., list[Sample]]
) -> None:
    groups = make_groups(groups_of(rewards), GRPO)
    assert groups[0].state == "unscorable"
    assert groups[0].dead
    for dead_groups in ("drop", "keep_kl"):
        assert to_train(groups, dead_groups) == ([], {"unscorable": len(rewards)})


def test_dead_groups_are_dropped_or_kept_for_their_kl(groups_of: Callable[..., list[Sample]]) -> None:
    groups = make_groups(groups_of((1, 0), (0.1 + 0.2, 0.3, NAN)), GRPO)
    assert [g.state for g in groups] == ["informative", "zero_variance"]
    kept, dropped = to_train(groups, "drop")
    assert len(kept) == 1
    assert dropped == {"zero_variance": 2, "unscorable": 1}
    kept, dropped = to_train(groups, "keep_kl")
    assert [[s.advantage for s in g.samples] for g in kept] == [list(groups[0].advantages), [0.0, 0.0]]
    assert dropped == {"unscorable": 1}


def test_what_the_learner_gets(sample: Callable[..., Sample]) -> None:
    samples = [sample(0, 3, 1.0, tokens=(5, 6, 2)), sample(1, 3, 0.0, tokens=(7,)), sample(2, 4, NAN)]
    (group,), _ = to_train(make_groups(samples, GRPO), "drop")
    assert group.prompt_ids == (1, 7)
    assert [s.completion_ids for s in group.samples] == [(5, 6, 2), (7,)]
    assert [s.mask for s in group.samples] == [(True,) * 3, (True,)]
    assert [s.sampler_logprobs for s in group.samples] == [(-0.5,) * 3, (-0.5,)]
    assert all(s.old_logprobs is None and s.ref_logprobs is None for s in group.samples)
    assert group.group_loss_tokens == 4


def test_denominators_are_of_the_whole_minibatch(groups_of: Callable[..., list[Sample]]) -> None:
    kept, _ = to_train(make_groups(groups_of((1, 0, 0), (1, 0), (0, 0)), GRPO), "drop")
    d = denominators_of(kept, 50)
    assert (d.sequences, d.tokens, d.prompts, d.max_length) == (5, 10, 2, 50)


VALUES = [*(i / 7 for i in range(-70, 71, 7)), 0.1, 0.7, -9.99, 1e6, 1e6 + 0.1]


@pytest.mark.parametrize("size", [2, 3, 7, 8, 16, 64])
def test_identical_rewards_have_advantages_of_exactly_zero(size: int, groups_of: Callable[..., list[Sample]]) -> None:
    samples = groups_of(*([value] * size for value in VALUES))
    guarded = [preset for preset in PRESETS.values() if preset.guard and preset.estimate == "group"]
    assert len(guarded) >= 7
    for preset in guarded:
        groups = make_groups(samples, preset)
        assert all(g.state == "zero_variance" for g in groups)
        assert all(a == 0.0 for g in groups for a in g.advantages)
        assert rollout_metrics(groups)["zero_variance_rate"] == 1.0


def test_without_a_group_baseline_an_equal_group_is_signal(groups_of: Callable[..., list[Sample]]) -> None:
    """REINFORCE++ compares with the whole batch: two right ones and two wrong ones tell as much as any."""
    groups = make_groups(groups_of((1, 1), (0, 0), (NAN, 1), (NAN, NAN)), PRESETS["reinforce_pp"])
    assert all(math.isnan(a) for g in groups for a in g.advantages)
    assert [g.state for g in groups] == ["informative", "informative", "informative", "unscorable"]
    kept, dropped = to_train(groups, "drop")
    assert [[s.advantage for s in g.samples] for g in kept] == [[1, 1], [0, 0], [1]]
    assert dropped == {"unscorable": 3}


def test_truncated_completions_may_be_left_out_of_the_loss_but_not_of_the_mean(sample: Callable[..., Sample]) -> None:
    """DAPO's overlong filtering."""
    samples = [sample(0, 0, 1.0), sample(1, 0, 0.0, finish="length"), sample(2, 0, 0.0)]
    groups = make_groups(samples, GRPO)
    (kept,), dropped = to_train(groups, "drop", mask_truncated=True)
    assert [s.advantage for s in kept.samples] == [groups[0].advantages[0], groups[0].advantages[2]]
    assert kept.group_loss_tokens == 4
    assert dropped == {"truncated": 1}
    only = make_groups([sample(i, 0, i, finish="length") for i in (0, 1)], GRPO)
    assert to_train(only, "drop", mask_truncated=True) == ([], {"truncated": 2})


def test_telemetry_counts_what_the_guard_says(groups_of: Callable[..., list[Sample]]) -> None:
    rng = random.Random(0)
    rewards = [[rng.choice((0.0, 0.3, 0.1 + 0.2, 1e-9)) for _ in range(4)] for _ in range(200)]
    groups = make_groups(groups_of(*rewards), GRPO)
    guard = is_zero_variance(torch.tensor(rewards, dtype=torch.float64)).double().mean().item()
    metrics = rollout_metrics(groups)
    assert 0 < guard < 1
    assert metrics["zero_variance_rate"] == guard
    assert metrics["informative_rate"] == 1 - guard
    assert sum(g.dead for g in groups) == round(200 * guard)
