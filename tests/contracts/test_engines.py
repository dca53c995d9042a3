"""What every rollout engine must do, whatever it does inside. A new engine joins by a line in ENGINES."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from assay.errors import EngineError
from assay.models.learner import TrainGroup, TrainSample
from assay.models.policy import Policy
from assay.models.scoring import packed_logprobs
from assay.models.tiny import character_tokenizer
from assay.rollout.engine import Engine, generate
from assay.rollout.kv_cache import KVCache
from assay.rollout.paged import PagedEngine, kv_bytes_per_token
from assay.rollout.reference import ReferenceEngine
from assay.types import Request, Trajectory

ENGINES: dict[str, Callable[[Policy], Engine]] = {
    "reference": ReferenceEngine,
    "paged": PagedEngine,
    "paged, three rows": partial(PagedEngine, max_running=3),
    "paged, little memory": lambda policy: PagedEngine(policy, kv_cache_bytes=70 * kv_bytes_per_token(policy)),
}
Make = Callable[[Policy], Engine]
Load = Callable[..., Policy]

SYSTEM = (5, 6, 7)
PROMPTS = [(*SYSTEM, 8), (*SYSTEM, 8, 9), (2, 10, 2, 11, 2), (63,)]
END = 2


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest) -> Make:
    return ENGINES[request.param]


@pytest.fixture(scope="module")
def policy(load: Load) -> Policy:
    """To sample from only."""
    return load()


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> WeakSet[KVCache]:
    """The caches that are alive, of those made during the test."""
    alive: WeakSet[KVCache] = WeakSet()
    make_cache = KVCache.__init__

    def noted(cache: KVCache, *args: Any) -> None:
        make_cache(cache, *args)
        alive.add(cache)

    monkeypatch.setattr(KVCache, "__init__", noted)
    return alive


def requests(temperature: float = 1.0, each: int = 6, max_new_tokens: int = 12, seed: int = 1) -> list[Request]:
    """Groups of ``each`` of every prompt, of uneven length limits."""
    asked = list(product(range(len(PROMPTS)), range(each)))
    return [
        Request(100 + i, group, PROMPTS[group], max_new_tokens - i % 3, temperature, seed)
        for i, (group, _) in enumerate(asked)
    ]


def drain(engine: Engine) -> dict[int, Trajectory]:
    done: dict[int, Trajectory] = {}
    while engine.pending:
        for trajectory in engine.poll():
            assert trajectory.sample_id not in done
            done[trajectory.sample_id] = trajectory
    return done


def texts(trajectories: Sequence[Trajectory]) -> list[tuple[int, ...]]:
    return [t.completion_ids for t in trajectories]


def trained_logprobs(policy: Policy, trajectory: Trajectory, temperature: float) -> Tensor:
    ids = trajectory.completion_ids
    sample = TrainSample(ids, (True,) * len(ids), 0.0, (0.0,) * len(ids))
    with torch.no_grad():
        return packed_logprobs(policy, [TrainGroup(trajectory.prompt_ids, (sample,), len(ids))], temperature)[0][0]


@pytest.fixture(scope="module")
def expected(policy: Policy) -> dict[int, Trajectory]:
    """What ``requests()`` gives, from the engine in which nothing can go wrong quietly."""
    engine = ReferenceEngine(policy)
    engine.submit(requests())
    return drain(engine)


def test_the_requests_show_both_ends_and_differ_within_a_group(expected: dict[int, Trajectory]) -> None:
    assert Counter(t.finish_reason for t in expected.values()).keys() == {"stop", "length"}
    groups = [texts([t for t in expected.values() if t.group_id == group]) for group in range(len(PROMPTS))]
    assert all(len(set(members)) > 1 for members in groups)
    assert any(len({ids[0] for ids in members}) < len(set(members)) for members in groups)  # begin alike, then part


def test_greedy_is_what_plain_transformers_generates(policy: Policy, plain: Callable[..., Any], make: Make) -> None:
    model = plain()
    for r, trajectory in zip(asked := requests(0.0, each=1), generate(make(policy), asked), strict=True):
        ids = torch.tensor([r.prompt_ids])
        whole = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=r.max_new_tokens,
            do_sample=False,
            eos_token_id=sorted(policy.end_ids),
        )
        assert trajectory.completion_ids == tuple(whole[0, len(r.prompt_ids) :].tolist())


def test_every_engine_draws_the_same_tokens_with_the_same_seeds(
    policy: Policy, expected: dict[int, Trajectory], make: Make
) -> None:
    """No allowance for tokens on the edge of two: on these models there is none."""
    asked = requests()
    for r, trajectory in zip(asked, generate(make(policy), asked), strict=True):
        assert trajectory.completion_ids == expected[r.sample_id].completion_ids
        assert trajectory.finish_reason == expected[r.sample_id].finish_reason
        assert (trajectory.sample_id, trajectory.group_id, trajectory.prompt_ids) == (
            r.sample_id,
            r.group_id,
            r.prompt_ids,
        )
        torch.testing.assert_close(
            torch.tensor(trajectory.logprobs), torch.tensor(expected[r.sample_id].logprobs), rtol=0, atol=1e-5
        )


def test_neither_order_nor_company_changes_a_completion(
    policy: Policy, expected: dict[int, Trajectory], make: Make
) -> None:
    asked = requests()
    turned = make(policy)
    turned.submit(asked[::-2])
    done = {t.sample_id: t for t in turned.poll()}
    turned.submit(asked[0::2])  # joins while the others run
    done |= drain(turned)
    alone = make(policy)
    one_by_one = {r.sample_id: generate(alone, [r])[0] for r in asked[::5]}
    for found in (done, one_by_one):
        assert {i: t.completion_ids for i, t in found.items()} == {i: expected[i].completion_ids for i in found}
    assert done.keys() == {r.sample_id for r in asked}


def test_the_seed_changes_the_completions(policy: Policy, expected: dict[int, Trajectory], make: Make) -> None:
    others = generate(make(policy), requests(seed=2))
    changed = [t.completion_ids != expected[t.sample_id].completion_ids for t in others]
    assert sum(changed) > len(changed) / 2


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_reported_logprobs_are_the_learners_at_the_requests_temperature(
    policy: Policy, make: Make, temperature: float
) -> None:
    for trajectory in generate(make(policy), requests(temperature, each=2)):
        reported = torch.tensor(trajectory.logprobs)
        torch.testing.assert_close(reported, trained_logprobs(policy, trajectory, temperature), rtol=0, atol=1e-5)


def test_temperatures_and_greedy_mix_in_one_batch(policy: Policy, make: Make) -> None:
    mixed = [replace(r, temperature=(0.0, 0.5, 1.0)[i % 3]) for i, r in enumerate(requests(each=3))]
    alone = ReferenceEngine(policy)
    for r, trajectory in zip(mixed, generate(make(policy), mixed), strict=True):
        assert trajectory.completion_ids == generate(alone, [r])[0].completion_ids
        reported = torch.tensor(trajectory.logprobs)
        expected = trained_logprobs(policy, trajectory, r.temperature or 1.0)
        torch.testing.assert_close(reported, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_other_architectures_too(load: Load, make: Make, architecture: str) -> None:
    policy = load(architecture)
    asked = requests(each=2)
    sampled = generate(make(policy), asked)
    assert texts(sampled) == texts(generate(ReferenceEngine(policy), asked))
    for trajectory in sampled:
        reported = torch.tensor(trajectory.logprobs)
        torch.testing.assert_close(reported, trained_logprobs(policy, trajectory, 1.0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_in_bfloat16_sampler_and_learner_stay_close(load: Load, make: Make, lora_rank: int) -> None:
    policy = load(spread=0.1, precision="bfloat16", lora_rank=lora_rank)
    for trajectory in generate(make(policy), requests(each=2)):
        gap = torch.tensor(trajectory.logprobs) - trained_logprobs(policy, trajectory, 1.0)
        assert gap.abs().max() < 0.05


def test_the_end_token_is_included_and_only_at_the_end(policy: Policy, make: Make) -> None:
    asked = requests(2.0, each=6)
    for r, trajectory in zip(asked, generate(make(policy), asked), strict=True):
        ids, ends = trajectory.completion_ids, policy.end_ids
        assert 1 <= len(ids) <= r.max_new_tokens
        assert not ends & set(ids[:-1])
        assert trajectory.finish_reason == ("stop" if ids[-1] in ends else "length")
        assert trajectory.finish_reason == "stop" or len(ids) == r.max_new_tokens
        assert len(trajectory.logprobs) == len(ids)
        assert trajectory.action_mask == (True,) * len(ids)


def test_one_new_token_is_one_and_an_end_token_at_the_limit_is_a_stop(policy: Policy, make: Make) -> None:
    asked = [Request(i, 0, PROMPTS[0], 1, 3.0, 0) for i in range(150)]
    sampled = generate(make(policy), asked)
    assert all(len(t.completion_ids) == 1 for t in sampled)
    assert {t.finish_reason for t in sampled if t.completion_ids[0] in policy.end_ids} == {"stop"}
    assert {t.finish_reason for t in sampled if t.completion_ids[0] not in policy.end_ids} == {"length"}


def test_an_end_token_in_the_prompt_ends_nothing(policy: Policy, make: Make) -> None:
    prompt = (END, 10, END, 30, END)
    sampled = generate(make(policy), [Request(i, 0, prompt, 8, 1.0, 0) for i in range(8)])
    assert any(len(t.completion_ids) > 1 for t in sampled)
    assert {t.prompt_ids for t in sampled} == {prompt}


def test_the_whole_context_can_be_filled(policy: Policy, make: Make) -> None:
    prompt = (5, 6, 7) * 20
    engine = make(policy)
    (trajectory,) = generate(engine, [Request(0, 0, prompt, policy.context_length - len(prompt), 1.0, 3)])
    reported = torch.tensor(trajectory.logprobs)
    torch.testing.assert_close(reported, trained_logprobs(policy, trajectory, 1.0), rtol=0, atol=1e-5)


def test_after_an_update_samples_come_from_the_new_weights_and_say_so(load: Load, make: Make) -> None:
    policy = load()
    engine = make(policy)
    asked = requests(each=2)
    old = generate(engine, asked)
    assert {s.weight_version for t in old for s in t.segments} == {0}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in policy.trainable().values():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    engine.update_weights(7)
    assert engine.weight_version == 7
    new = generate(engine, asked)
    assert {s.weight_version for t in new for s in t.segments} == {7}
    assert texts(new) != texts(old)
    assert texts(new) == texts(generate(make(policy), asked)) == texts(generate(ReferenceEngine(policy), asked))
    for trajectory in new:
        reported = torch.tensor(trajectory.logprobs)
        torch.testing.assert_close(reported, trained_logprobs(policy, trajectory, 1.0), rtol=0, atol=1e-5)


def test_weights_cannot_change_under_running_requests(policy: Policy, make: Make) -> None:
    engine = make(policy)
    engine.submit(requests(each=1))
    with pytest.raises(EngineError, match="4 requests are running"):
        engine.update_weights(1)
    engine.poll()
    with pytest.raises(EngineError, match="requests are running"):
        engine.update_weights(1)
    assert engine.weight_version == 0
    drain(engine)
    engine.update_weights(1)


def test_aborted_requests_are_gone_and_the_engine_goes_on(
    policy: Policy, expected: dict[int, Trajectory], make: Make, caches: WeakSet[KVCache]
) -> None:
    engine = make(policy)
    engine.submit(requests())
    for _ in range(3):
        engine.poll()
    engine.abort()
    assert engine.pending == 0
    assert engine.poll() == []
    assert not caches
    engine.update_weights(1)
    asked = requests()
    assert texts(generate(engine, asked)) == [expected[r.sample_id].completion_ids for r in asked]


def test_pending_counts_down_to_nothing_and_nothing_is_kept(
    policy: Policy, make: Make, caches: WeakSet[KVCache]
) -> None:
    engine = make(policy)
    assert engine.pending == 0
    assert engine.poll() == []
    asked = requests(each=2)
    engine.submit(asked)
    returned = 0
    while engine.pending:
        assert engine.pending == len(asked) - returned
        returned += len(engine.poll())
    assert returned == len(asked)
    assert engine.poll() == []
    assert not caches


BAD = {
    "beyond the context": (Request(1, 0, (5,) * 60, 5, 1.0, 0), "need 65 positions, and the model's context has 64"),
    "no new tokens": (Request(1, 0, (5,), 0, 1.0, 0), "max_new_tokens must be at least 1, got 0"),
    "a negative temperature": (Request(1, 0, (5,), 4, -0.5, 0), "temperature must not be negative, got -0.5"),
    "an empty prompt": (Request(1, 0, (), 4, 1.0, 0), "a prompt of 0 tokens"),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_cannot_be_answered_is_refused_and_nothing_of_it_is_queued(policy: Policy, make: Make, bad: str) -> None:
    request, message = BAD[bad]
    engine = make(policy)
    with pytest.raises(EngineError, match=message):
        engine.submit([Request(0, 0, (5,), 4, 1.0, 0), request])
    assert engine.pending == 0


def test_two_requests_of_one_sample_id_are_refused(policy: Policy, make: Make) -> None:
    engine = make(policy)
    with pytest.raises(EngineError, match="2 requests share sample ids"):
        generate(engine, [Request(1, 0, (5,), 4, 1.0, 0), Request(1, 0, (6,), 4, 1.0, 0)])
    assert engine.pending == 0


def test_verify_refuses_a_temperature_without_logprobs(policy: Policy, make: Make) -> None:
    with pytest.raises(EngineError, match="positive temperature, got 0"):
        make(policy).verify((5,), (6,), 0)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_verify_gives_the_learners_logprobs(policy: Policy, make: Make, temperature: float) -> None:
    engine = make(policy)
    for trajectory in generate(engine, requests(each=1)):
        own = engine.verify(trajectory.prompt_ids, trajectory.completion_ids, temperature)
        torch.testing.assert_close(own, trained_logprobs(policy, trajectory, temperature), rtol=0, atol=1e-5)
    assert engine.pending == 0


def test_frequencies_are_the_softmax(make: Make) -> None:
    """Pairs of tokens over a vocabulary of 5, drawn 1000 times, against the model's exact distribution."""
    config = LlamaConfig(
        vocab_size=5,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.3,
        max_position_embeddings=16,
        eos_token_id=4,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = 4
    model.set_attn_implementation("assay")
    tokenizer = character_tokenizer()
    tokenizer.eos_token = None
    policy = Policy(model, tokenizer, torch.device("cpu"), "float32")
    draws, temperature, prompt = 1000, 1.3, (0, 1)
    sampled = generate(make(policy), [Request(i, 0, prompt, 2, temperature, 0) for i in range(draws)])

    def probabilities(ids: tuple[int, ...]) -> list[float]:
        with torch.no_grad():
            logits_V = model(input_ids=torch.tensor([ids])).logits[0, -1]
        return list(torch.softmax(logits_V / temperature, dim=-1).tolist())

    exact: dict[tuple[int, ...], float] = {}
    for first, p in enumerate(probabilities(prompt)):
        if first == 4:
            exact[first,] = p
        else:
            exact |= {(first, second): p * q for second, q in enumerate(probabilities((*prompt, first)))}
    assert sum(exact.values()) == pytest.approx(1, abs=1e-5)
    counts = Counter(texts(sampled))
    assert counts.keys() <= exact.keys()
    chi_square = sum((counts[ids] - draws * p) ** 2 / (draws * p) for ids, p in exact.items())
    assert chi_square < 45.3  # 20 degrees of freedom, 0.1 %


def test_paged_refuses_one_request_over_its_memory_with_both_numbers(policy: Policy) -> None:
    engine = PagedEngine(policy, kv_cache_bytes=10 * kv_bytes_per_token(policy))
    with pytest.raises(EngineError, match=r"8 \+ 4 tokens.*kv_cache_gb allows.*raise it or shorten"):
        engine.submit([Request(0, 0, (5,) * 8, 4, 1.0, 0)])
    assert engine.pending == 0
    assert len(generate(engine, [Request(0, 0, (5,) * 6, 4, 1.0, 0)])) == 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_paged_keeps_the_bytes_that_it_counts(load: Load, caches: WeakSet[KVCache], precision: str) -> None:
    policy = load(precision=precision)
    engine = PagedEngine(policy)
    engine.submit([Request(i, 0, (5, 6, 7), 8, 1.0, 0) for i in range(20)])
    engine.poll()
    (cache,) = caches
    tensors = [t for held in vars(cache).values() if isinstance(held, list) for t in held if isinstance(t, Tensor)]
    tokens = sum(t.numel() for t in tensors) / (2 * 2 * 2 * 8)  # two layers, two heads, keys and values of width 8
    assert 3 < tokens <= 3 + 20 * 8
    assert sum(t.numel() * t.element_size() for t in tensors) == tokens * kv_bytes_per_token(policy)
