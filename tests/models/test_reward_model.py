"""A reward model's scores do not depend on what is scored beside them, and what is no reward model is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from assay.errors import DataError, ModelError
from assay.models.reward_model import RewardModel, load_reward_model
from assay.models.tiny import character_tokenizer
from assay.types import Row

CPU = torch.device("cpu")
TEXTS = [("1+2=", "3"), ("12+34=", "46"), ("5+5=", "a wrong one"), ("1+2=", "4")]


def test_each_score_is_that_of_its_own_row(reward_model_folder: Callable[..., Path]) -> None:
    folder = reward_model_folder()
    plain = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = character_tokenizer()
    expected = [
        plain(input_ids=torch.tensor([tokenizer(prompt + text)["input_ids"]])).logits.item() for prompt, text in TEXTS
    ]
    assert len({round(score, 3) for score in expected}) == 4
    for size in (1, 3, 16):
        assert load_reward_model(str(folder), CPU, size).score(TEXTS) == pytest.approx(expected, abs=1e-5)


def test_chat_prompts_go_through_its_own_template(reward_model_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = reward_model_folder()
    model = load_reward_model(str(folder), CPU, 2)
    model._tokenizer.chat_template = "{% for m in messages %}{{ m['role'][0] + ': ' + m['content'] + '.' }}{% endfor %}"
    chat = model.score([(({"role": "user", "content": "1+2="},), "3")])
    assert chat == pytest.approx(model.score([("u: 1+2=.a: 3.", "")]), abs=1e-6)


def test_what_is_longer_than_its_context_has_no_score(reward_model_folder: Callable[..., Path]) -> None:
    model = load_reward_model(str(reward_model_folder()), CPU, 2)
    long, short = model.score([("1" * 65, ""), ("1", "2")])
    assert math.isnan(long)
    assert math.isfinite(short)
    assert model.score([]) == []


def test_it_is_frozen_and_says_what_it_takes(reward_model_folder: Callable[..., Path]) -> None:
    model = load_reward_model(str(reward_model_folder()), CPU, 2)
    parameters = list(model.module.parameters())
    assert not any(p.requires_grad for p in parameters)
    assert model.bytes == 4 * sum(p.numel() for p in parameters)


def test_prompts_that_it_cannot_read_are_refused_before_a_run(reward_model_folder: Callable[..., Path]) -> None:
    model = load_reward_model(str(reward_model_folder()), CPU, 2)
    model.check([Row("fine", "1+2=", "3")])
    with pytest.raises(DataError, match="the reward model's tokenizer has no chat template"):
        model.check([Row("fine", "1+2=", "3"), Row("chat", ({"role": "user", "content": "1+2="},), "3")])
    with pytest.raises(DataError, match="row long: the prompt alone has 64 tokens for the reward model, whose context"):
        model.check([Row("long", "1" * 64, "3")])


def test_without_a_padding_token_nothing_is_taken_for_padding(
    reward_model_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Token 0 is a token like any other then, also as the last one of a row."""
    module = AutoModelForSequenceClassification.from_pretrained(reward_model_folder()).eval()
    module.config.pad_token_id = None
    model = RewardModel(module, character_tokenizer(), CPU, 16)
    whole = model._tokenizer.convert_ids_to_tokens([5, 6, 7, 0])
    text = "".join(whole)
    expected = module(input_ids=torch.tensor([[5, 6, 7, 0]])).logits.item()
    shorter = module(input_ids=torch.tensor([[5, 6, 7]])).logits.item()
    assert abs(expected - shorter) > 1e-3
    assert model.score([(text, ""), (text[:3], "")]) == pytest.approx([expected, shorter], abs=1e-6)


def test_what_is_no_reward_model_is_refused(
    model_folder: Callable[..., Path], reward_model_folder: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"there is no model folder .*runs/rm; make it first"):
        load_reward_model("runs/rm", CPU, 2)
    with pytest.raises(ModelError, match=r"has no weights for score\.weight: it was not trained as a sequence classif"):
        load_reward_model(str(model_folder("llama")), CPU, 2)
    with pytest.raises(ModelError, match=r"holds no model: it has no config\.json"):
        load_reward_model(str(tmp_path), CPU, 2)
    with pytest.raises(ModelError, match="has 3 labels; a reward model has one"):
        load_reward_model(str(reward_model_folder(3)), CPU, 2)
