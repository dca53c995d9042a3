"""A frozen neural reward model: a Hugging Face sequence classification model with one label.

It judges text, as its authors trained it: prompt and completion are rendered with its own tokenizer (and its
own chat template, for chat prompts), not with the policy's. transformers reads the score at the last token that is
no padding; without a padding token of its own a model is asked row by row, so that nothing is taken for padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from assay.errors import DataError, ModelError
from assay.models.policy import local_or_hub
from assay.types import Message, Row


class RewardModel:
    """Scores of (prompt, completion), one number each, higher for better."""

    def __init__(self, module: Any, tokenizer: Any, device: torch.device, batch_size: int) -> None:
        self.module = module.to(device).eval().requires_grad_(False)
        self._tokenizer = tokenizer
        self._device = device
        self._pad = self.module.config.pad_token_id
        self._batch_size = batch_size if self._pad is not None else 1

    @property
    def context_length(self) -> int | None:
        """Most tokens of prompt and completion, where the model says."""
        limit: int | None = getattr(self.module.config, "max_position_embeddings", None)
        return limit

    def check(self, rows: Sequence[Row]) -> None:
        """Raise DataError for a prompt that it cannot read, before a run begins."""
        if self._tokenizer.chat_template is None and any(not isinstance(row.prompt, str) for row in rows):
            raise DataError(
                "the prompts are chat messages, but the reward model's tokenizer has no chat template; use plain "
                "prompts, or another reward model"
            )
        for row in rows:
            tokens = len(self._encode(row.prompt, ""))
            if self.context_length is not None and tokens >= self.context_length:
                raise DataError(
                    f"row {row.row_id}: the prompt alone has {tokens} tokens for the reward model, whose context has "
                    f"{self.context_length}; shorten it, or use another reward model"
                )

    @property
    def bytes(self) -> int:
        """What the weights take."""
        return sum(p.numel() * p.element_size() for p in self.module.parameters())

    @torch.no_grad()
    def score(self, texts: Sequence[tuple[str | tuple[Message, ...], str]]) -> list[float]:
        """One score a (prompt, completion), in order. What does not fit the model's context scores NaN."""
        rows = [self._encode(prompt, completion) for prompt, completion in texts]
        limit = self.context_length or max(map(len, rows), default=0)
        scores = [float("nan")] * len(rows)
        # Rows of like length together, so that little is padded.
        fitting = sorted((i for i, row in enumerate(rows) if len(row) <= limit), key=lambda i: len(rows[i]))
        for start in range(0, len(fitting), self._batch_size):
            batch = fitting[start : start + self._batch_size]
            for i, value in zip(batch, self._forward([rows[i] for i in batch]), strict=True):
                scores[i] = value
        return scores

    def _encode(self, prompt: str | tuple[Message, ...], completion: str) -> list[int]:
        if isinstance(prompt, str):
            return list(self._tokenizer(prompt + completion, add_special_tokens=True)["input_ids"])
        messages = [*prompt, {"role": "assistant", "content": completion}]
        text = self._tokenizer.apply_chat_template(messages, tokenize=False)
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _forward(self, rows: Sequence[list[int]]) -> list[float]:
        longest = max(map(len, rows))
        padded = [row if self._pad is None else row + [self._pad] * (longest - len(row)) for row in rows]
        ids_BT = torch.tensor(padded, device=self._device)
        lengths_B1 = torch.tensor([[len(row)] for row in rows], device=self._device)
        mask_BT = (torch.arange(longest, device=self._device) < lengths_B1).long()
        scores: list[float] = self.module(input_ids=ids_BT, attention_mask=mask_BT).logits[:, 0].double().tolist()
        return scores


def load_reward_model(name: str, device: torch.device, batch_size: int) -> RewardModel:
    """Load a Hugging Face folder or hub name. Raises ModelError for what is no reward model."""
    source = local_or_hub(name, "make it first, or name a Hugging Face folder or hub name in [reward_model]")
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        module, report = AutoModelForSequenceClassification.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        first_line = (str(error).strip().splitlines() or [""])[0]
        raise ModelError(f"[reward_model] name = {name!r} cannot be loaded: {first_line}") from error
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"[reward_model] name = {name!r} has no weights for {missing[0]}: it was not trained as a sequence "
            f"classification model, and its scores would be random"
        )
    if module.config.num_labels != 1:
        raise ModelError(
            f"[reward_model] name = {name!r} has {module.config.num_labels} labels; a reward model has one, its score"
        )
    if module.config.pad_token_id is None:
        module.config.pad_token_id = tokenizer.pad_token_id
    return RewardModel(module, tokenizer, device, batch_size)
