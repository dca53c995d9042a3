"""The policy: prompts in, text out, what it refuses, and that what it saves is what it was."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    T5Config,
)

from assay.errors import CheckpointError, DataError, ModelError
from assay.models.policy import Policy, load_policy, resolve_model
from assay.models.tiny import character_tokenizer, tiny_folder
from assay.rollout.engine import generate
from assay.rollout.paged import PagedEngine
from assay.rollout.reference import ReferenceEngine
from assay.train.job import shape_of
from assay.types import Request

Load = Callable[..., Policy]

CPU = torch.device("cpu")
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
IDS = torch.tensor([[5, 6, 7, 8, 9, 10]])


def read(name: Path | str, **options: Any) -> Policy:
    return load_policy(str(name), precision="float32", device=CPU, **options)


def write(folder: Path, config: Any) -> Path:
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return folder


def logits(policy: Policy) -> Tensor:
    with torch.no_grad():
        return policy.head.logits(policy.hidden(IDS))


def moved(policy: Policy) -> Policy:
    """With every trainable weight changed."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in policy.trainable().values():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return policy


@pytest.fixture(scope="module")
def policy(load: Load) -> Policy:
    """To read from only."""
    return load()


def test_a_text_prompt_is_encoded_as_it_is(policy: Policy) -> None:
    ids = policy.encode_prompt("1+2=")
    assert policy.decode(ids) == "1+2="
    assert len(ids) == 4


def test_chat_messages_go_through_the_models_template(load: Load) -> None:
    policy = load()
    policy.tokenizer.chat_template = TEMPLATE
    ids = policy.encode_prompt(({"role": "system", "content": "add"}, {"role": "user", "content": "1+2"}))
    assert policy.decode(ids) == "system: add\nuser: 1+2\nassistant: "


def test_chat_messages_without_a_template_are_refused(policy: Policy) -> None:
    with pytest.raises(DataError, match="no chat template"):
        policy.encode_prompt(({"role": "user", "content": "hi"},))


def test_an_empty_prompt_is_refused(policy: Policy) -> None:
    with pytest.raises(DataError, match="no tokens"):
        policy.encode_prompt("")


def test_decoding_drops_the_end_token_at_the_end_and_hides_nothing_else(policy: Policy) -> None:
    end, (one, plus) = policy.tokenizer.eos_token_id, policy.encode_prompt("1+")
    assert policy.decode((one, plus, end)) == "1+"
    assert policy.decode((one, end, plus)) == "1<eos>+"
    assert policy.decode((0, 1, one, end, end)) == "<pad><bos>1<eos>"
    assert policy.decode((end,)) == ""
    assert policy.decode(()) == ""


def test_a_given_response_ends_with_an_end_token(policy: Policy) -> None:
    ids = policy.encode_response("12")
    assert policy.decode(ids) == "12"
    assert len(ids) == 3
    assert ids[-1] == policy.tokenizer.eos_token_id == 2


def test_it_is_the_tokenizers_own_of_several_end_tokens(load: Load) -> None:
    policy = load()
    policy.tokenizer.eos_token = "z"
    again = Policy(policy.module, policy.tokenizer, policy.device, "float32")
    assert min(again.end_ids) < again.end_id == again.encode_response("12")[-1] == again.encode_prompt("z")[0]


def test_end_tokens_are_all_that_generation_config_and_tokenizer_name(load: Load, policy: Policy) -> None:
    assert policy.end_ids == {2, 30, 31}
    assert policy.decode((5, 30)) == policy.decode((5,))


def test_a_single_end_token_is_read_too() -> None:
    assert read(tiny_folder()).end_ids == {2}


def test_a_model_without_an_end_token_is_refused(load: Load) -> None:
    policy = load()
    policy.module.generation_config.eos_token_id = None
    policy.tokenizer.eos_token = None
    with pytest.raises(ModelError, match="no end-of-sequence token"):
        Policy(policy.module, policy.tokenizer, CPU, "float32")


def test_a_folder_without_a_model_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hi")
    with pytest.raises(ModelError, match=r"no config\.json; found notes\.txt"):
        read(tmp_path)


def test_a_missing_folder_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model folder .*nowhere.*assay sft.*smollm2-135m"):
        read(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="no model folder"):
        read("runs/none/model")


def test_a_model_that_is_no_causal_language_model_is_refused(tmp_path: Path) -> None:
    T5Config(vocab_size=64, d_model=16, num_layers=1, num_heads=2).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        read(tmp_path)


def test_a_config_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be loaded"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (MistralConfig(**SMALL, sliding_window=16), "'mistral' uses sliding_attention"),
        (Qwen2Config(**SMALL, use_sliding_window=True, max_window_layers=1), "'qwen2' uses sliding_attention"),
        (Gemma2Config(**SMALL, query_pre_attn_scalar=8), "'gemma2' uses attention soft-capping, sliding_attention"),
        (GraniteConfig(**SMALL, logits_scaling=8.0), "'granite' scales its logits"),
        (
            LlamaConfig(**SMALL, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
            "'llama' uses positions that depend on the longest sequence",
        ),
    ],
    ids=["sliding window", "sliding window in some layers", "soft-capping", "scaled logits", "dynamic positions"],
)
def test_what_is_not_computed_faithfully_is_refused_by_name(tmp_path: Path, config: Any, named: str) -> None:
    with pytest.raises(ModelError, match=named):
        read(write(tmp_path, config))


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SMALL, sliding_window=None),
        Qwen2Config(**SMALL, use_sliding_window=False, sliding_window=16),
        LlamaConfig(**SMALL, attention_bias=True, tie_word_embeddings=False),
    ],
    ids=["no window", "a window that is not used", "untied head"],
)
def test_full_attention_is_taken_and_is_transformers_own_forward(tmp_path: Path, config: Any) -> None:
    policy = read(write(tmp_path, config))
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    torch.testing.assert_close(logits(policy), plain(input_ids=IDS).logits, rtol=0, atol=1e-5)


def test_a_policy_has_no_dropout(load: Load, policy: Policy) -> None:
    assert not policy.module.training
    assert not load(lora_rank=4).module.training


def test_trainable_names_each_weight_once(load: Load) -> None:
    tied, untied = load("llama").trainable(), load("qwen2").trainable()
    assert "lm_head.weight" not in tied
    assert "lm_head.weight" in untied


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_what_is_saved_is_a_plain_folder_with_the_same_bits(load: Load, tmp_path: Path, architecture: str) -> None:
    policy = moved(load(architecture))
    policy.save(tmp_path)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).state_dict()
    ours = policy.module.state_dict()
    assert saved.keys() == ours.keys()
    assert all(torch.equal(saved[name], ours[name]) for name in ours)
    back = read(tmp_path)
    assert torch.equal(logits(back), logits(policy))
    assert back.end_ids == policy.end_ids
    assert back.encode_prompt("1+2") == policy.encode_prompt("1+2")


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_saved_weights_are_taken_back_bit_for_bit(load: Load, tmp_path: Path, lora_rank: int) -> None:
    policy = moved(load(lora_rank=lora_rank))
    policy.save(tmp_path)
    other = load(lora_rank=lora_rank)
    assert not torch.equal(logits(other), logits(policy))
    other.load_weights(tmp_path)
    assert torch.equal(logits(other), logits(policy))


def test_merged_adapters_are_a_plain_folder_with_the_same_forward(load: Load, tmp_path: Path) -> None:
    policy = moved(load(lora_rank=4))
    before = logits(policy)
    policy.save_merged(tmp_path)
    assert not (tmp_path / "adapter_config.json").exists()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    torch.testing.assert_close(plain(input_ids=IDS).logits, before, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(read(tmp_path)), before, rtol=1e-4, atol=1e-4)
    assert torch.equal(logits(policy), before)  # merged into a copy
    assert not torch.allclose(before, logits(load()), atol=1e-2)


def test_merging_without_adapters_is_saving(load: Load, tmp_path: Path) -> None:
    policy = load()
    policy.save_merged(tmp_path)
    assert torch.equal(logits(read(tmp_path)), logits(policy))


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_an_adapter_folder_is_a_model_to_go_on_from(load: Load, tmp_path: Path, lora_rank: int) -> None:
    """Its adapters are part of the weights that train on, or that new adapters are put on."""
    policy = moved(load(lora_rank=4))
    policy.save(tmp_path)
    again = read(tmp_path, lora_rank=lora_rank)
    torch.testing.assert_close(logits(again), logits(policy), rtol=1e-4, atol=1e-4)
    assert again.trainable().keys() == load(lora_rank=lora_rank).trainable().keys()
    again.save_merged(tmp_path / "merged")
    torch.testing.assert_close(logits(read(tmp_path / "merged")), logits(policy), rtol=1e-4, atol=1e-4)


def test_adapters_off_needs_adapters(policy: Policy) -> None:
    with pytest.raises(ModelError, match="lora_rank"), policy.adapters_off():
        pass


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox"])
def test_models_without_grouped_queries_agree_with_transformers(name: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
    if name == "gpt_neox":
        sizes["intermediate_size"] = 128
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **sizes)).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    policy = read(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    ids = torch.tensor([[5, 9, 14, 3, 22]])
    with torch.no_grad():
        torch.testing.assert_close(policy.head.logits(policy.hidden(ids)), theirs(ids).logits, rtol=1e-4, atol=1e-5)
    requests = [Request(i, 0, (5, 9, 14), 6, 1.0, 0) for i in range(4)]
    paged, slow = generate(PagedEngine(policy), requests), generate(ReferenceEngine(policy), requests)
    assert [t.completion_ids for t in paged] == [t.completion_ids for t in slow]
    assert shape_of(policy).intermediate == 128


def test_weights_that_are_cut_short_are_a_message(model_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder("llama"), folder)
    policy = read(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        read(folder)
    with pytest.raises(CheckpointError, match=r"cannot be read .*; if an older checkpoint stands beside it"):
        policy.load_weights(folder)


def test_a_home_folder_is_understood(model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder("llama")
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve_model(f"~/{folder.name}") == str(folder)
