"""What every test may use: small models of three architectures, a cache of their own, and one thread."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForSequenceClassification, Qwen2Config, Qwen3Config
from transformers.utils import logging

from assay.cli.main import run
from assay.models.policy import Policy, Precision, load_policy
from assay.models.tiny import character_tokenizer

CPU = torch.device("cpu")
CONFIGS: dict[str, type[Any]] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def pytest_configure(config: pytest.Config) -> None:
    """Converted models go to a folder of this test run, unless ASSAY_CACHE names one; xdist's workers inherit it."""
    if "ASSAY_CACHE" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="assay-test-cache-")
        os.environ["ASSAY_CACHE"] = folder.name
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(lambda: os.environ.pop("ASSAY_CACHE"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """These tensors are small: more threads only contend with the other test processes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


Assay = Callable[..., Outcome]


@pytest.fixture
def assay(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Assay:
    """``assay("train", "recipe.toml")``, run as the console script runs it."""
    # A new process switches the bars off by itself, before transformers is loaded.
    logging.disable_progress_bar()

    def call(*args: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run()
        code = ended.value.code
        return Outcome(code if isinstance(code, int) else int(code is not None), *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``model_folder(architecture, spread=0.3)``: a Hugging Face folder, two layers, grouped queries, context of 64.

    Weights are drawn wide by default, so that logits are far from uniform and every token before matters; three
    tokens end a completion, so that some do. A spread of 0.02 is what models start from.
    """

    @functools.cache
    def make(architecture: str, spread: float = 0.3) -> Path:
        folder = tmp_path_factory.mktemp(architecture)
        tokenizer = character_tokenizer()
        config = CONFIGS[architecture](
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=64,
            initializer_range=spread,
            tie_word_embeddings=architecture == "llama",
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config)
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, 30, 31]
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def reward_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``reward_model_folder(labels=1)``: a sequence classification model that reads characters, untrained."""

    @functools.cache
    def make(labels: int = 1) -> Path:
        folder = tmp_path_factory.mktemp("reward-model")
        tokenizer = character_tokenizer()
        config = LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
            initializer_range=0.3,
            num_labels=labels,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            LlamaForSequenceClassification(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def load(model_folder: Callable[..., Path]) -> Callable[..., Policy]:
    """``load(architecture="llama", spread=0.3, precision="float32", lora_rank=0)``: a policy of its own."""

    def policy(
        architecture: str = "llama", spread: float = 0.3, precision: Precision = "float32", lora_rank: int = 0
    ) -> Policy:
        folder = model_folder(architecture, spread)
        return load_policy(str(folder), precision=precision, device=CPU, lora_rank=lora_rank)

    return policy


@pytest.fixture(scope="session")
def plain(model_folder: Callable[..., Path]) -> Callable[..., Any]:
    """``plain(architecture="llama", spread=0.3, dtype=float32)``: the same model as transformers runs it."""

    def model(architecture: str = "llama", spread: float = 0.3, dtype: torch.dtype = torch.float32) -> Any:
        folder = model_folder(architecture, spread)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()

    return model
