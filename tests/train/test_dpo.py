"""DPO: the loss by hand, runs that repeat and go on bit by bit against the reference they began with, and bad rows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.config import Config
from assay.data.preferences import Preference
from assay.errors import ConfigError, DataError, Interrupted
from assay.models.learner import TrainGroup
from assay.models.packing import packed_length
from assay.models.policy import Policy
from assay.models.reference import Reference
from assay.train import dpo, sft
from assay.types import Row

Load = Callable[..., Policy]
Traces = Callable[[Path], dict[str, Any]]
TEXTS = [("1+2=", "3", "4"), ("1+2=", "3", "12"), ("20+20=", "40", ""), ("7+8=", "15", "1515"), ("9+9=", "18", "81")]
PAIRS = [Preference(Row(f"row-{i}", prompt, None), *texts) for i, (prompt, *texts) in enumerate(TEXTS)]
BETA = 0.3


def forward_backward(
    policy: Policy, reference: Reference, batch: Sequence[TrainGroup], max_tokens: int = 1000
) -> tuple[dpo.Observed, Tensor]:
    """What the pairs showed, and the whole gradient."""
    seen = dpo.forward_backward(
        policy, reference, batch, beta=BETA, max_tokens=max_tokens, on_micro_batch=lambda *_: None
    )
    return seen, torch.cat([p.grad.flatten() for p in policy.trainable().values() if p.grad is not None])


def logprob(model: Any, prompt: tuple[int, ...], completion: tuple[int, ...]) -> float:
    """Of a whole completion, from one plain row."""
    logits_TV = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].double()
    return float(torch.log_softmax(logits_TV, dim=-1).gather(-1, torch.tensor(completion)[:, None]).sum())


@torch.no_grad()
def by_hand(model: Any, ref_model: Any, pairs: Sequence[TrainGroup]) -> list[tuple[float, float]]:
    """Implicit rewards of chosen and rejected."""
    return [
        tuple(
            BETA * (logprob(model, p.prompt_ids, s.completion_ids) - logprob(ref_model, p.prompt_ids, s.completion_ids))
            for s in p.samples
        )
        for p in pairs
    ]  # type: ignore[misc]


def test_loss_and_rewards_are_those_of_plain_rows(load: Load, plain: Callable[..., Any]) -> None:
    policy, reference = load(), Reference(load(spread=0.2))
    pairs = dpo.encode_pairs(PAIRS, policy)
    rewards = by_hand(plain(), plain(spread=0.2), pairs)
    expected = sum(math.log1p(math.exp(rejected - chosen)) for chosen, rejected in rewards) / 5
    assert abs(expected - math.log(2)) > 0.1
    for max_tokens in (1, 25, 1000):
        seen, _ = forward_backward(policy, reference, pairs, max_tokens)
        assert seen.loss == pytest.approx(expected, rel=1e-5)
        assert seen.chosen_rewards == pytest.approx([chosen for chosen, _ in rewards], abs=1e-5)
        assert seen.rejected_rewards == pytest.approx([rejected for _, rejected in rewards], abs=1e-5)


def double(policy: Policy) -> Policy:
    policy.module.double()
    return policy


def test_micro_batches_of_whole_pairs_change_neither_loss_nor_gradient(load: Load) -> None:
    reference = Reference(double(load(spread=0.2)))
    results = []
    for max_tokens, parts in ((1, 5), (25, 2), (1000, 1)):
        policy = double(load())
        pairs = dpo.encode_pairs(PAIRS, policy)
        batches = dpo.micro_batches(pairs, max_tokens, whole=True)
        assert [pair for batch in batches for pair in batch] == pairs
        assert len(batches) == parts
        results.append(forward_backward(policy, reference, pairs, max_tokens))
        assert results[-1][1].abs().max() > 0.01
    for seen, gradient in results[1:]:
        assert seen.loss == pytest.approx(results[0][0].loss, abs=1e-12)
        # transformers computes RMSNorm in float32 whatever the model's precision.
        assert (gradient - results[0][1]).norm() / results[0][1].norm() < 1e-6


def test_the_prompt_of_a_pair_is_computed_once(load: Load) -> None:
    (pair, *_) = dpo.encode_pairs([Preference(Row("r", "12345678", None), "1+1", "2+2")], load())
    prompt = len(pair.prompt_ids)
    assert [len(s.completion_ids) for s in pair.samples] == [4, 4]  # three characters and the end token
    assert packed_length([pair.prompt_ids + s.completion_ids[:-1] for s in pair.samples]) == prompt + 6


def test_a_policy_that_is_its_reference_has_exactly_log_2(load: Load) -> None:
    for policy in (load(), load(lora_rank=4)):
        seen, gradient = forward_backward(policy, Reference(policy), dpo.encode_pairs(PAIRS, policy))
        assert seen.loss == pytest.approx(math.log(2), abs=1e-15)
        assert {*seen.chosen_rewards, *seen.rejected_rewards} == {0.0}
        assert gradient.abs().max() > 0  # equal is no fixed point


@pytest.fixture
def recipe(config: Callable[..., Config]) -> Callable[..., Config]:
    """``recipe(train={"steps": 3})``: the tests' recipe on pairs, no answers among them."""
    lines = [{"prompt": prompt, "chosen": chosen, "rejected": rejected} for prompt, chosen, rejected in TEXTS]
    Path("pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = {"train": "pairs.jsonl"}

    def make(**changes: Any) -> Config:
        return config(**{"data": data, "dpo": {"beta": BETA, "pairs_per_step": 3}, **changes})

    return make


def test_it_learns_and_the_same_recipe_gives_the_same_bytes(recipe: Callable[..., Config], traces: Traces) -> None:
    first, second = dpo.train(recipe(train={"steps": 8})), dpo.train(recipe(train={"steps": 8}))
    assert traces(first.path) == traces(second.path)
    records = first.metrics
    assert set(records[0]) == {
        *("step", "loss", "dpo_accuracy", "dpo_margin", "dpo_reward/chosen", "dpo_reward/rejected", "grad_norm"),
        *("learning_rate", "tokens_per_second", "seconds", "samples_total"),
    }
    assert records[0]["loss"] == pytest.approx(math.log(2), abs=1e-15)
    assert [records[0][name] for name in ("dpo_accuracy", "dpo_margin", "dpo_reward/chosen")] == [0, 0, 0]
    assert records[-1]["loss"] < 0.3
    assert records[-1]["dpo_accuracy"] == 1
    assert records[-1]["dpo_margin"] == pytest.approx(
        records[-1]["dpo_reward/chosen"] - records[-1]["dpo_reward/rejected"], abs=1e-12
    )
    assert [m["samples_total"] for m in records] == [3 * i for i in range(1, 9)]
    assert set(first.evaluation) == {"before", "after"}
    assert traces(dpo.train(recipe(train={"steps": 8}, seed=1)).path)["metrics"] != traces(first.path)["metrics"]


def test_a_larger_beta_stays_nearer_to_the_reference(recipe: Callable[..., Config]) -> None:
    moved = []
    for beta in (0.1, 2.0):
        last = dpo.train(recipe(dpo={"beta": beta, "pairs_per_step": 5}, train={"steps": 12})).metrics[-1]
        moved.append(last["dpo_margin"] / beta)
    assert moved[0] > moved[1]


@pytest.mark.slow
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(
    lora_rank: int, recipe: Callable[..., Config], config: Callable[..., Config], traces: Traces, stop_at: Any
) -> None:
    model = {**config().model.model_dump(), "lora_rank": lora_rank}
    asked = recipe(train={"steps": 5, "eval_every": 2}, optimizer={"schedule": "cosine"}, model=model)
    whole = traces(dpo.train(asked, Path("whole")).path)
    for label, count, step in (("update", 1, 0), ("update", 4, 3), ("evaluation", 1, 0), ("evaluation", 9, 2)):
        stop_at(label, count)
        folder = Path(f"{label}-{count}")
        with pytest.raises(Interrupted, match=f"stopped after step {step}; go on with: assay dpo --resume {folder}"):
            dpo.train(asked, folder)
        assert traces(dpo.resume(folder).path) == whole, folder
    with pytest.raises(ConfigError, match="has finished its 5 steps"):
        dpo.resume(folder)
    with pytest.raises(ConfigError, match="is a run of `assay dpo`; resume it with that command"):
        sft.resume(folder)


def test_a_run_of_another_kind_is_refused(config: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match="is a run of `assay sft`; resume it with that command"):
        dpo.resume(sft.train(config(train={"steps": 1})).path)


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected", "says"),
    [
        ("1+1=", "2", "2", "row r: chosen and rejected are the same 2 tokens, so there is nothing to learn from it"),
        ("1+1=", "Ä", "Ö", "chosen and rejected are the same 2 tokens"),  # both unknown to the tokenizer
        ("1+1=", "2", "2" * 60, "row r: the prompt has 4 tokens, chosen 2 and rejected 61, and the model's context"),
        ("1+1=", "2" * 60, "2", "chosen 61 and rejected 2, and the model's context has 64; shorten them"),
    ],
)
def test_pairs_that_cannot_be_trained_on_are_named(
    prompt: str, chosen: str, rejected: str, says: str, load: Load
) -> None:
    with pytest.raises(DataError, match=says):
        dpo.encode_pairs([PAIRS[0], Preference(Row("r", prompt, None), chosen, rejected)], load())


def test_what_just_fits_the_context_is_taken(load: Load) -> None:
    assert len(dpo.encode_pairs([Preference(Row("r", "1+1=", None), "2" * 59, "2")], load())) == 1
