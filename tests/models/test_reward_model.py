"""A reward model's scores do not depend on what is scored beside them, and what is no reward model is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from assay.errors import ModelError
from assay.models.reward_model import load_reward_model
from assay.models.tiny import character_tokenizer

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


def test_what_is_no_reward_model_is_refused(
    model_folder: Callable[..., Path], reward_model_folder: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"has no weights for score\.weight: it was not trained as a sequence classif"):
        load_reward_model(str(model_folder("llama")), CPU, 2)
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_reward_model(str(tmp_path), CPU, 2)
    with pytest.raises(ModelError, match="has 3 labels; a reward model has one"):
        load_reward_model(str(reward_model_folder(3)), CPU, 2)
