"""All of the peers' reference vectors, each sorted once: agreed, different on purpose, or not offered.

``python -m pytest tests/core/test_oracle_count.py -s`` prints the count. An agreed case is one whose value, and
gradient where it has one, a function of assay.core gives, through the peer's preset where there is one. A case that
is different must differ, and agree wherever its entry says so; of one that is not offered nothing of ours may be it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from assay.core.kl import k1, k3
from assay.core.loss import is_clipped, is_outside, value_loss
from assay.core.masked import masked_mean
from assay.core.presets import PRESETS
from assay.core.zero_variance import is_zero_variance
from oracle.agreement import COMPARATORS, FLOAT32_INSIDE, METRICS, excess
from oracle.cases import OracleCase, load
from oracle.deviations import DIFFERENT, NOT_OFFERED, Different, NotOffered, anything_of_ours
from oracle.losses import MODES, mode_of, preset_of

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = ("tests/oracle/README.md", "docs/algorithm.md")
CLEARLY = 10
"""How far, in units of what is allowed, what is different has to be."""

SORTS = ("agreed", "different", "not offered")


def entries_of(case: OracleCase) -> list[Different | NotOffered]:
    return [entry for entry in (*DIFFERENT, *NOT_OFFERED) if entry.applies(case)]


def fault_of(case: OracleCase, entries: list[Different | NotOffered]) -> str | None:
    """What is wrong with the sort that the entries give the case, if anything."""
    if len(entries) > 1:
        return f"is in {len(entries)} entries"
    entry = entries[0] if entries else None
    if isinstance(entry, NotOffered) and not entry.unseen:
        nearest = min((excess(case, ours) for ours in anything_of_ours(case)), default=None)
        if nearest is None and case.outputs.keys() - METRICS:
            return "is not offered, but nothing of ours was tried"
        return f"is not offered, but ours is {nearest:.3g} off" if nearest is not None and nearest <= CLEARLY else None
    ours = COMPARATORS[case.function](case)
    off = excess(case, ours)
    if isinstance(entry, Different):
        if off <= CLEARLY:
            return f"is to be different and is {off:.3g} off"
        elsewhere = excess(case, ours, entry.same(case))
        return f"is {elsewhere:.3g} off where it is to agree" if elsewhere > 1 else None
    return f"is {off:.3g} off, times what is allowed" if off > 1 else None


def sort_of(entries: list[Different | NotOffered]) -> str:
    if not entries:
        return "agreed"
    return "different" if isinstance(entries[0], Different) else "not offered"


def total(counts: Counter[str]) -> str:
    agreed, different, rest = (counts[sort] for sort in SORTS)
    cases = agreed + different + rest
    return f"{cases} cases: {agreed + different} compared, {agreed} agreed, {different} different, {rest} not offered"


def report(cases: list[OracleCase]) -> str:
    """The count by family and in total, and the reasons."""
    families: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    for case in cases:
        entries = entries_of(case)
        families.setdefault(case.family, Counter())[sort_of(entries)] += 1
        reasons.update(entry.reason for entry in entries)
    lines = [f"{'family':14}{'cases':>7}{'compared':>10}{'agreed':>8}{'different':>11}{'not offered':>13}"]
    for family, n in sorted(families.items()):
        agreed, different, rest = (n[sort] for sort in SORTS)
        lines.append(f"{family:14}{n.total():7}{agreed + different:10}{agreed:8}{different:11}{rest:13}")
    lines.append(total(sum(families.values(), Counter())))
    for sort, entries in (("different", DIFFERENT), ("not offered", NOT_OFFERED)):
        lines += [f"{reasons[entry.reason]:4} {sort}: {entry.reason}" for entry in entries]
    return "\n".join(lines)


def test_every_case_is_agreed_different_on_purpose_or_not_offered() -> None:
    cases = load()
    assert len({case.id for case in cases}) == len(cases) == 440
    print(f"\n{report(cases)}")
    faults = {case.id: fault_of(case, entries_of(case)) for case in cases}
    wrong = [f"{name} {fault}" for name, fault in faults.items() if fault]
    assert not wrong, "\n".join(wrong)


def test_every_entry_is_used_and_every_comparator_too() -> None:
    cases = load()
    for entry in (*DIFFERENT, *NOT_OFFERED):
        assert any(entry.applies(case) for case in cases), entry.reason
    assert COMPARATORS.keys() <= {case.function for case in cases}
    assert FLOAT32_INSIDE.keys() <= {case.id for case in cases}


def test_the_documents_have_the_count_as_it_is() -> None:
    cases = load()
    counts = Counter(sort_of(entries_of(case)) for case in cases)
    for name in DOCUMENTS:
        assert total(counts) in (ROOT / name).read_text(encoding="utf-8"), name
    assert report(cases) in (ROOT / DOCUMENTS[0]).read_text(encoding="utf-8")


def test_what_is_not_offered_but_unseen_is_the_case_without_it() -> None:
    """TRL's delta at sequence level: the numbers are ours, so that only the setting is missing."""
    unseen = [entry for entry in NOT_OFFERED if entry.unseen]
    cases = [case for case in load() for entry in unseen if entry.applies(case)]
    assert len(cases) == 10
    for case in cases:
        assert excess(case, COMPARATORS[case.function](case)) <= 1, case.id


@pytest.mark.parametrize(
    ("preset", "loss"),
    [
        ("verl_grpo", "verl_vanilla_dual3_token-mean_tail"),
        ("openrlhf_grpo", "openrlhf_ppo_0.2_0.2_None_token"),
        ("trl_grpo", "trl_dapo_token_b0.04_0.2_0.2_None"),
    ],
)
def test_a_peers_preset_is_compared_as_it_is(preset: str, loss: str) -> None:
    (case,) = load("policy_loss", id=loss)
    assert preset_of(case) == PRESETS[preset]
    assert MODES[mode_of(case)] == (PRESETS[preset].aggregation, {})
    assert not entries_of(case)


# The sorting itself: what it has to catch


@pytest.mark.parametrize("output", ["loss", "grad_log_prob"])
def test_a_case_that_no_longer_agrees_is_caught(output: str) -> None:
    (case,) = load("policy_loss", id="verl_vanilla_dual3_token-mean_tail")
    assert fault_of(case, []) is None
    moved = replace(case, outputs={**case.outputs, output: case.outputs[output] + 2e-10})
    assert "off" in (fault_of(moved, []) or "")


def test_a_difference_that_is_none_is_caught() -> None:
    (case,) = load("policy_loss", id="verl_vanilla_dual3_token-mean_tail")
    assert "is to be different" in (fault_of(case, [replace(DIFFERENT[0], same=lambda _: {})]) or "")
    (plain,) = load("policy_loss", id="verl_vanilla_ppo02_token-mean_tail")
    assert "is not offered, but ours is" in (fault_of(plain, [NOT_OFFERED[0]]) or "")


def test_a_difference_that_grows_is_caught() -> None:
    """A peer whose float32 noise in dead groups is known, and that is suddenly off in a living one."""
    (case,) = load("advantages", id="trl_grpo_group")
    advantages = case.outputs["adv"].clone()
    advantages[0] += 1e-4
    moved = replace(case, outputs={**case.outputs, "adv": advantages})
    assert "where it is to agree" in (fault_of(moved, entries_of(case)) or "")


def test_a_case_in_two_entries_is_caught() -> None:
    (case,) = load("advantages", id="trl_grpo_group")
    assert fault_of(case, [DIFFERENT[0], DIFFERENT[1]]) == "is in 2 entries"


# What the packages report besides value and gradient


def test_clip_fractions_of_verl() -> None:
    """verl adds 1e-8 to the number of tokens."""
    losses = [c for c in load("policy_loss", peer="verl") if c.function.endswith(("[vanilla]", "[cispo]"))]
    assert len(losses) == 80
    for case in losses:
        i, s = case.inputs, case.settings
        touched = is_clipped if case.function.endswith("[vanilla]") else is_outside
        bounds = {"eps_low": s["clip_ratio_low"], "eps_high": s["clip_ratio_high"]}
        share = masked_mean(touched(i["log_prob"], i["old_log_prob"], i["advantages"], **bounds).double(), i["mask"])
        assert share.item() == pytest.approx(s["metrics"]["actor/pg_clipfrac"], abs=1e-9), case.id
    for case in load("value_loss", peer="verl"):
        i = case.inputs
        values = i["vpreds"], i["values"], i["returns"]
        larger = value_loss(*values, clip=case.settings["cliprange_value"]) > value_loss(*values)
        share = masked_mean(larger.double(), i["mask"])
        assert share.item() == pytest.approx(case.outputs["clipfrac"].item(), abs=1e-9), case.id


def test_trl_counts_fewer_groups_without_signal_than_there_are() -> None:
    """Six of twelve: all 0, all 1, all .1, .35 and .6, and .5 + k 1e-9. Its float32 sigma misses two of them."""
    (case,) = load("advantages", id="trl_grpo_group")
    assert is_zero_variance(case.inputs["rewards"]).double().mean().item() == 0.5
    assert case.outputs["frac_reward_zero_std"].item() == pytest.approx(4 / 12)


def test_kl_between_sampler_and_learner_of_verl() -> None:
    (case,) = load("rollout_is", function="rollout_corr_helper.compute_offpolicy_metrics")
    i, metrics = case.inputs, case.settings["metrics"]
    for name, estimator in (("kl", k1), ("k3_kl", k3)):
        mean = masked_mean(estimator(i["rollout_log_prob"], i["old_log_prob"]), i["mask"])
        assert mean.item() == pytest.approx(metrics[name], abs=1e-9), name
