"""The policy: a transformers causal language model with its tokenizer, used through our attention."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from assay.core.logprob import scaled_logits
from assay.errors import CheckpointError, DataError, ModelError
from assay.models import smollm2, tiny
from assay.models.attention import ATTENTION, Layout
from assay.types import Message

BUILT_IN_MODELS = {smollm2.NAME: smollm2.smollm2_folder, tiny.NAME: tiny.tiny_folder}
"""Short names for models that need no hub, each a function that returns a Hugging Face folder."""

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Head:
    """The vocabulary head as numbers: logits = hidden weight^T + bias, soft-capped where the model says so."""

    weight_VH: Tensor
    bias_V: Tensor | None
    softcap: float | None

    def logits(self, hidden: Tensor, temperature: float = 1.0) -> Tensor:
        return scaled_logits(hidden, self.weight_VH, temperature, self.softcap, self.bias_V)


class Policy:
    """A model in evaluation mode (no dropout: sampler and learner must agree), its tokenizer and device.

    Parameters are kept in float32; precision ``bfloat16`` computes under autocast, so that small updates are
    never lost. With LoRA the base weights are frozen and adapters train.
    """

    def __init__(self, model: Any, tokenizer: Any, device: torch.device, precision: Precision) -> None:
        self.module = model.to(device).eval()
        self.tokenizer = tokenizer
        self.device = device
        self.precision = precision
        self.is_lora = hasattr(model, "disable_adapter")
        self._causal = model.get_base_model() if self.is_lora else model
        self._decoder = self._causal.get_decoder()
        self.config = self._causal.config
        self.end_ids = _end_ids(self._causal, tokenizer)
        _refuse_unsupported(self.config)
        self._check_head()

    @property
    def context_length(self) -> int:
        """Most tokens that prompt and completion may have together."""
        return int(self.config.max_position_embeddings)

    @property
    def end_id(self) -> int:
        """The token that ends a response that is given: the tokenizer's own, of all that end a completion."""
        own = self.tokenizer.eos_token_id
        return int(own) if own is not None else min(self.end_ids)

    @property
    def head(self) -> Head:
        layer = self._causal.get_output_embeddings()
        return Head(layer.weight, getattr(layer, "bias", None), getattr(self.config, "final_logit_softcapping", None))

    def hidden(self, input_ids: Tensor, position_ids: Tensor | None = None, layout: Layout | None = None) -> Tensor:
        """Last hidden states [B, N, H]; without a layout every row is plain causal."""
        with self.autocast():
            output = self._decoder(input_ids=input_ids, position_ids=position_ids, use_cache=False, layout=layout)
        states: Tensor = output.last_hidden_state
        return states

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        enabled = self.precision == "bfloat16"
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=enabled)

    @contextlib.contextmanager
    def adapters_off(self) -> Iterator[None]:
        """The base model, for LoRA runs: the reference costs no second copy."""
        if not self.is_lora:
            raise ModelError("adapters_off needs a LoRA policy ([model] lora_rank > 0)")
        with self.module.disable_adapter():
            yield

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """Parameters that train, by name, each once (tied weights count once)."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def encode_prompt(self, prompt: str | tuple[Message, ...]) -> tuple[int, ...]:
        """Token ids of a prompt: chat messages through the model's template, a plain string as it is."""
        if isinstance(prompt, str):
            ids = self.tokenizer(prompt, add_special_tokens=True)["input_ids"]
        else:
            if self.tokenizer.chat_template is None:
                raise DataError("the prompts are chat messages, but this model's tokenizer has no chat template")
            # Rendered to text first: apply_chat_template's token form differs between library versions.
            text = self.tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if not ids:
            raise DataError(f"the prompt {prompt!r} has no tokens; every prompt needs at least one")
        return tuple(ids)

    def encode_response(self, text: str) -> tuple[int, ...]:
        """Token ids of a response that is given (supervised learning), the end token included."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return (*ids, self.end_id)

    def decode(self, completion_ids: tuple[int, ...]) -> str:
        """The completion as text, without its end token. Other special tokens stay visible: nothing is hidden."""
        ids = completion_ids[:-1] if completion_ids and completion_ids[-1] in self.end_ids else completion_ids
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def load_weights(self, folder: Path) -> None:
        """Take the weights (for LoRA: the adapter) of a folder that ``save`` wrote, bit for bit.

        Raises CheckpointError if they cannot be read.
        """
        try:
            if self.is_lora:
                from peft import load_peft_weights, set_peft_model_state_dict  # noqa: PLC0415 - slow to import

                set_peft_model_state_dict(self.module, load_peft_weights(str(folder), device="cpu"))
            else:
                saved = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
                self.module.load_state_dict(saved.state_dict())
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise CheckpointError(
                f"the weights in {folder} cannot be read ({error}); if an older checkpoint stands beside it, delete "
                f"this one and resume again"
            ) from error

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder (for LoRA: the adapter, which names its base model)."""
        self.module.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def save_merged(self, folder: Path) -> None:
        """Write a plain Hugging Face folder, with adapters merged into a copy of the weights."""
        if not self.is_lora:
            self.save(folder)
            return
        copy.deepcopy(self.module).merge_and_unload().save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def _check_head(self) -> None:
        """Refuse a model whose logits are not plainly hidden times head, before anything is trained on it."""
        ids = torch.tensor([[min(self.end_ids), 1 % self.config.vocab_size]], device=self.device)
        with torch.no_grad():
            ours = self.head.logits(self.hidden(ids)).float()
            with self.autocast():
                theirs = self._causal(input_ids=ids, use_cache=False).logits.float()
        gap = (ours - theirs).abs().max().item()
        if gap > (1e-3 if self.precision == "float32" else 0.5):
            raise ModelError(
                f"the architecture {self.config.model_type!r} scales its logits in a way that is not supported: "
                f"head(hidden) differs from the model's own logits by {gap:.3g}"
            )


def load_policy(name: str, *, precision: Precision, device: torch.device, lora_rank: int = 0) -> Policy:
    """Load a built-in model, a Hugging Face folder (a LoRA adapter is merged into its base) or a hub name.

    Raises ModelError if it is no model or its architecture is not supported.
    """
    source = resolve_model(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = _read(source)
        if getattr(model, "peft_config", None):
            model = _merged_adapter(source)
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        first_line = (str(error).strip().splitlines() or [""])[0]
        raise ModelError(
            f"{name!r} cannot be loaded as a causal language model: {first_line}\n"
            f"[model] name must be a Hugging Face folder (config.json, weights, tokenizer), a hub name, or one of: "
            f"{', '.join(BUILT_IN_MODELS)}"
        ) from error
    if lora_rank:
        model = _add_lora(model, lora_rank)
    return Policy(model, tokenizer, device, precision)


def resolve_model(name: str) -> str:
    """The folder or hub name behind ``name``. Raises ModelError for a folder that is no model."""
    if name in BUILT_IN_MODELS:
        return str(BUILT_IN_MODELS[name]())
    return local_or_hub(
        name,
        "train it first (a warm start: `assay sft RECIPE`), or name a Hugging Face folder, a hub name, or one of: "
        f"{', '.join(BUILT_IN_MODELS)}",
    )


def local_or_hub(name: str, advice: str) -> str:
    """The folder or hub name. Raises ModelError for a folder that is no model or, with ``advice``, not there."""
    folder = Path(name).expanduser()
    if folder.is_dir() and not any((folder / f).exists() for f in ("config.json", "adapter_config.json")):
        raise ModelError(f"the folder {folder} holds no model: it has no config.json; found {_listing(folder)}")
    looks_like_path = name.startswith((".", "/", "~", "runs/")) or name.count("/") > 1
    if not folder.exists() and looks_like_path:
        raise ModelError(f"there is no model folder {folder.absolute()}; {advice}")
    return str(folder) if folder.exists() else name


def pick_device() -> torch.device:
    """The first GPU if there is one, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def _read(source: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation=ATTENTION)


def _merged_adapter(source: str) -> Any:
    """The base model that an adapter names, with the adapter merged: left apart, nothing of it would train."""
    from peft import PeftConfig, PeftModel  # noqa: PLC0415 - slow to import, and most runs do without

    base = _read(PeftConfig.from_pretrained(source).base_model_name_or_path)
    return PeftModel.from_pretrained(base, source).merge_and_unload().requires_grad_(True)


def _add_lora(model: Any, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model  # noqa: PLC0415 - slow to import, and most runs do without

    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return get_peft_model(model, config)


def _end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends a completion, from the generation config and the tokenizer."""
    declared = getattr(model.generation_config, "eos_token_id", None)
    ids = [*(declared if isinstance(declared, list) else [declared]), tokenizer.eos_token_id]
    found = frozenset(int(i) for i in ids if i is not None)
    if not found:
        raise ModelError("the model names no end-of-sequence token, so no completion could ever finish")
    return found


def _refuse_unsupported(config: Any) -> None:
    """Attention variants that packing and the paged engine do not compute yet are named, never approximated."""
    layers = set(getattr(config, "layer_types", None) or ())
    kinds = layers - {"full_attention"}
    if not layers and getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        kinds.add("sliding_attention")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        kinds.add("positions that depend on the longest sequence of a batch")
    if getattr(config, "attn_logit_softcapping", None):
        kinds.add("attention soft-capping")
    if kinds:
        raise ModelError(
            f"the architecture {config.model_type!r} uses {', '.join(sorted(kinds))}, which is not supported yet; "
            f"supported are models with full causal attention (Llama, Qwen2, Qwen3, …)"
        )


def _listing(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir())
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "") if names else "nothing"
