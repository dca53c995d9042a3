"""What a recipe names is built and checked before the first step, and what does not fit is said with numbers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from assay.config import Config
from assay.errors import ConfigError, DataError, VerifierError
from assay.models.policy import Policy
from assay.planner.memory import state_bytes
from assay.rollout.paged import PagedEngine
from assay.rollout.reference import ReferenceEngine
from assay.train.job import (
    algorithm_of,
    build_composite,
    build_engine,
    build_policy,
    check_disk,
    encode_prompts,
    load_checked_rows,
    load_eval_rows,
    optimizer_settings,
    overlong_buffer,
    shape_of,
    tokens_per_micro_batch,
)

Disk = Callable[[float], None]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Disk:
    def set_free(count: float) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 0, int(count)))

    return set_free


def test_rows_are_encoded_and_those_that_do_not_fit_the_context_are_named(
    config: Callable[..., Config], load: Callable[..., Policy]
) -> None:
    policy, verify = load(), build_composite(config())
    rows = "".join(f'{{"prompt": "{"1" * n}", "answer": "1"}}\n' for n in (3, 60, 61))
    Path("rows.jsonl").write_text(rows)
    rows = load_checked_rows("rows.jsonl", verify)
    prompts = encode_prompts(rows[:2], policy, 4)
    assert [len(ids) for ids in prompts.ids] == [3, 60]
    assert [row.row_id for row in prompts.rows] == ["rows.jsonl:1", "rows.jsonl:2"]
    with pytest.raises(DataError, match=r"row rows.jsonl:3: the prompt has 61 tokens and max_new_tokens is 4.* has 64"):
        encode_prompts(rows, policy, 4)


def test_a_column_that_a_verifier_needs_is_missed_before_the_first_step(
    config: Callable[..., Config],
) -> None:
    verify = build_composite(config(verifiers=[{"name": "exact", "answer": "gold"}]))
    with pytest.raises(VerifierError, match="row addition/train/0 has no column 'gold'"):
        load_checked_rows("builtin:addition?split=train&rows=2", verify)


def test_a_gold_that_can_never_be_graded_is_named_before_the_first_step(config: Callable[..., Config]) -> None:
    Path("rows.jsonl").write_text('{"prompt": "p", "answer": "1"}\n{"prompt": "p", "answer": [1]}\n')
    verify = build_composite(config(verifiers=[{"name": "json"}, {"name": "exact"}]))
    with pytest.raises(DataError, match=r"rows.jsonl, row rows.jsonl:2 can never be graded: exact: the answer must be"):
        load_checked_rows("rows.jsonl", verify)


def test_evaluation_rows_are_the_first_ones_or_none(config: Callable[..., Config]) -> None:
    verify = build_composite(config())
    rows = load_eval_rows(config(data={"eval_rows": 3}), verify)
    assert rows is not None
    assert [row.row_id for row in rows] == [f"addition/heldout/{i}" for i in range(3)]
    without = config(data={"train": "builtin:addition?split=train", "eval": None})
    assert load_eval_rows(without, verify) is None


def test_names_are_built_and_unknown_ones_listed(config: Callable[..., Config], load: Callable[..., Policy]) -> None:
    assert isinstance(build_engine(config(), load()), PagedEngine)
    assert isinstance(build_engine(config(rollout={"engine": "reference"}), load()), ReferenceEngine)
    assert algorithm_of(config(algorithm={"preset": "rloo"})).advantage == "leave_one_out"
    with pytest.raises(
        ConfigError, match=r"there is no 'drgrpo' \(did you mean 'dr_grpo'\?\); allowed: grpo, dr_grpo, "
    ):
        algorithm_of(config(algorithm={"preset": "drgrpo"}))


def test_a_recipe_may_change_what_its_preset_has(config: Callable[..., Config]) -> None:
    plain = algorithm_of(config(algorithm={"preset": "dapo"}))
    assert (plain.eps_high, plain.dead_groups) == (0.28, "resample")
    changed = algorithm_of(config(algorithm={"preset": "dapo", "eps_high": 0.4, "dead_groups": "drop"}))
    assert changed == replace(plain, eps_high=0.4, dead_groups="drop")
    with pytest.raises(ConfigError, match=r"algorithm\.dual_clip: cispo, the loss of 'cispo', has none"):
        algorithm_of(config(algorithm={"preset": "cispo", "dual_clip": 3.0}))
    buffers = [
        overlong_buffer(config(algorithm=a), plain) for a in ({}, {"overlong_buffer": 0}, {"overlong_buffer": 3})
    ]
    assert buffers == [1, 0, 3]


def test_fresh_adapters_depend_on_the_seed_alone(config: Callable[..., Config]) -> None:
    def adapter(seed: int) -> list[float]:
        policy = build_policy(config(seed=seed, model={"lora_rank": 2}))
        return next(p for name, p in policy.trainable().items() if "lora_A" in name).flatten().tolist()

    assert adapter(0) == adapter(0)
    assert adapter(0) != adapter(1)


def test_the_schedule_counts_optimiser_steps(config: Callable[..., Config]) -> None:
    settings = optimizer_settings(config(train={"steps": 7}, optimizer={"beta1": 0.5, "beta2": 0.6}), 6)
    assert settings.total_steps == 42
    assert settings.betas == (0.5, 0.6)


def test_a_memory_budget_that_is_too_small_says_what_is_needed(
    config: Callable[..., Config], load: Callable[..., Policy]
) -> None:
    policy = load()
    with pytest.raises(ConfigError, match=r"train.memory_gb = 2.0 is too little: .* alone take 2.0 GB") as caught:
        tokens_per_micro_batch(config(train={"memory_gb": 2.0}), policy)
    assert all(fix in str(caught.value) for fix in ("raise it", "model.lora_rank", "train.micro_batch_tokens"))
    assert tokens_per_micro_batch(config(train={"memory_gb": 2.0, "micro_batch_tokens": 17}), policy) == 17


def test_a_reference_and_a_larger_cache_leave_less(config: Callable[..., Config], load: Callable[..., Policy]) -> None:
    policy, adapters = load(), load(lora_rank=2)
    plain = tokens_per_micro_batch(config(), policy)
    assert tokens_per_micro_batch(config(rollout={"kv_cache_gb": 4.0}), policy) < plain
    with_reference = tokens_per_micro_batch(config(algorithm={"beta": 0.1}), policy)
    assert with_reference < plain
    assert tokens_per_micro_batch(config(), policy, reference=True) == with_reference
    assert tokens_per_micro_batch(config(algorithm={"beta": 0.1}), policy, reference=False) == plain
    # Adapters switched off are the reference: no second copy.
    beta = config(algorithm={"beta": 0.1}, model={"lora_rank": 2})
    assert tokens_per_micro_batch(beta, adapters) == tokens_per_micro_batch(config(), adapters)
    assert tokens_per_micro_batch(config(), adapters, reference=True) == tokens_per_micro_batch(config(), adapters)


def test_tied_weights_count_once(load: Callable[..., Policy]) -> None:
    policy = load("llama")
    shape = shape_of(policy)
    assert shape.parameters == shape.trainable == sum(p.numel() for p in policy.trainable().values())
    assert (shape.layers, shape.hidden, shape.intermediate, shape.vocabulary) == (2, 32, 64, 64)
    lora = shape_of(load("llama", lora_rank=2))
    assert lora.trainable < shape.parameters < lora.parameters
    assert state_bytes(lora) < state_bytes(shape)


def test_the_disk_must_hold_the_checkpoints_that_stand_at_once(
    tmp_path: Path, load: Callable[..., Policy], free: Disk
) -> None:
    policy = load()
    parameters = shape_of(policy).parameters
    # keep_last + 1 checkpoints of weights and two moments, the final model, and 50 MB.
    need = 3 * 12 * parameters + 4 * parameters + 50e6
    free(need)
    check_disk(tmp_path, policy, 2)
    free(need - 1)
    with pytest.raises(ConfigError, match=r"too little disk .* \(3 checkpoints of .* lower train.keep_last \(now 2\)"):
        check_disk(tmp_path, policy, 2)


def test_of_a_critic_what_trains_is_counted_with_its_moments(
    tmp_path: Path, load: Callable[..., Policy], free: Disk
) -> None:
    for policy in (load(), load(lora_rank=2)):
        shape = shape_of(policy)
        saved = shape.trainable if policy.is_lora else shape.parameters
        need = 2 * (4 * saved + 8 * shape.trainable + 12 * shape.trainable) + 4 * shape.parameters + 50e6
        free(need)
        check_disk(tmp_path, policy, 1, own_critic=True)
        free(need - 1)
        with pytest.raises(ConfigError, match="too little disk"):
            check_disk(tmp_path, policy, 1, own_critic=True)


def test_checkpoints_that_stand_already_need_no_more_room(
    tmp_path: Path, load: Callable[..., Policy], free: Disk
) -> None:
    policy = load()
    parameters = shape_of(policy).parameters
    for step in (1, 2, 3):
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
        (tmp_path / "checkpoints" / f"step-{step:06d}" / "progress.json").touch()
    free(12 * parameters + 4 * parameters + 50e6)
    check_disk(tmp_path, policy, 2)
    free(12 * parameters + 4 * parameters + 50e6 - 1)
    with pytest.raises(ConfigError, match=r"\(1 checkpoints of"):
        check_disk(tmp_path, policy, 2)


def test_a_folder_that_is_not_there_yet_is_on_its_parents_disk(tmp_path: Path, load: Callable[..., Policy]) -> None:
    check_disk(tmp_path / "not" / "yet", load(), 1)
    check_disk(Path("not/yet"), load(), 1)
