"""A character-level Llama of about 3 M parameters, made from scratch: for tests and for a run in a minute."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from assay.models.cache import cached_model

NAME = "tiny-char"
VERSION = 1
CHARACTERS = "0123456789+-*/=() .,:;?abcdefghijklmnopqrstuvwxyz\n"


def tiny_folder() -> Path:
    """The untrained model as a Hugging Face folder in the cache, the same weights on every call."""
    return cached_model(f"{NAME}-v{VERSION}", make_tiny)


def make_tiny(folder: Path, *, hidden: int = 256, layers: int = 4, heads: int = 4, seed: int = 0) -> None:
    """Write a randomly initialised character-level Llama and its tokenizer to ``folder``."""
    tokenizer = character_tokenizer()
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=hidden,
        intermediate_size=hidden * 43 // 16,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character; unknown characters become <unk>."""
    special = ["<pad>", "<bos>", "<eos>", "<unk>"]
    vocabulary = {token: i for i, token in enumerate([*special, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=64,
    )
