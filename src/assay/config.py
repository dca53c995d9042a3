"""The recipe: one frozen tree, read from TOML with dotted overrides, validated once and never mutated."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from assay.errors import ConfigError, did_you_mean

PositiveInt = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A table of the recipe: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelSection(Section):
    name: str = "smollm2-135m"
    """A built-in name, a Hugging Face folder, or a hub name."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What is computed in. Weights and optimiser stay in float32."""
    lora_rank: Annotated[int, Field(ge=0, le=1024)] = 0
    """Rank of LoRA adapters on all linear layers; 0 trains everything."""


class DataSection(Section):
    train: str
    """A .jsonl or .parquet file, or builtin:NAME?split=…; relative paths are relative to where assay runs."""
    eval: str | None = None
    """Held-out rows, the same forms; null: no evaluation."""
    eval_rows: PositiveInt = 200
    """At most this many held-out rows, from the first on."""


class RolloutSection(Section):
    engine: Literal["paged", "reference"] = "paged"
    prompts_per_step: PositiveInt = 4
    max_new_tokens: PositiveInt = 56
    """Longest completion, in tokens, its end token included."""
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    max_running: PositiveInt = 64
    """Completions decoded together at most (paged)."""
    kv_cache_gb: Annotated[float, Field(gt=0)] = 2.0
    """Keys and values at most, in 1e9 bytes (paged)."""


class AlgorithmSection(Section):
    preset: str = "grpo"
    """A name in assay.core.presets.PRESETS."""
    advantage: str | None = None
    """A name in assay.core.advantage.ADVANTAGES; null: the preset's, as in the following one."""
    loss: str | None = None
    """A name in assay.core.loss.LOSSES."""
    group_size: Annotated[int, Field(ge=1, le=1024)] = 8
    """Completions of each prompt; algorithms whose baseline is the group need 2."""
    beta: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Weight of the KL to the reference, in the loss or the reward as the preset has it; 0: no reference is loaded."""
    kl_target: Annotated[float, Field(gt=0)] | None = None
    """KL to the reference (k3, nats a token) that beta is steered to after each step; null: beta stays as it is."""
    kl_horizon: Annotated[float, Field(gt=0)] = 10_000.0
    """Completions over which beta moves by at most a fifth (kl_target)."""
    dead_groups: Literal["drop", "keep_kl", "resample", "keep_in_denominator"] | None = None
    """Groups without signal: dropped before the forward pass; kept for their KL term; replaced by groups of further
    prompts; or kept in the loss's denominators, as peers do. null: as the preset has it."""
    resample_rounds: Annotated[int, Field(ge=1, le=20)] = 3
    """Times that dead groups are replaced within a step at most (dead_groups = "resample")."""
    mask_truncated: bool = False
    """Leave completions cut off at max_new_tokens out of the loss (not out of their group's mean)."""
    overlong_buffer: Annotated[int, Field(ge=0)] | None = None
    """The last tokens before max_new_tokens over which a penalty grows to -1; 0: none; null: as the preset has it."""
    eps_low: Annotated[float, Field(gt=0, le=1)] | None = None
    """Clip range below 1; null: the preset's, as in the following two."""
    eps_high: Annotated[float, Field(gt=0, le=100)] | None = None
    dual_clip: Annotated[float, Field(gt=1, le=100)] | None = None
    entropy_bonus: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Weight of the entropy (nats a token) that is added to the objective."""
    importance_correction: Literal["tis", "mis"] | None = None
    """Where sampler and learner differ: weigh tokens by min(w, cap), or leave out sequences whose w is above it."""
    importance_cap: Annotated[float, Field(gt=1, le=1000)] = 2.0
    minibatches: PositiveInt = 1
    """Optimiser steps over each rollout's groups."""
    epochs: PositiveInt = 1
    """Passes over each rollout."""


class CriticSection(Section):
    """The value network of preset ppo."""

    backbone: Literal["own", "actor"] = "own"
    """own: a whole model, at first the policy's weights, that trains. actor: a linear head on the policy's last
    hidden states, which it does not train: almost no memory, and a weaker critic."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 1e-4
    """Schedule, clipping and the other settings are those of [optimizer]."""
    gamma: Annotated[float, Field(gt=0, le=1)] | None = None
    """Discount of one token; null: the preset's, as in the following two."""
    lam: Annotated[float, Field(ge=0, le=1)] | None = None
    """lambda of GAE."""
    value_clip: Annotated[float, Field(ge=0)] | None = None
    """How far a value may move from the one before the update, in reward; 0: as far as it likes."""


class RewardModelSection(Section):
    """A frozen neural reward model whose score is part of the reward."""

    name: str
    """A Hugging Face folder or hub name of a sequence classification model with one label."""
    weight: Annotated[float, Field(ge=-100, le=100)] = 1.0
    batch_size: PositiveInt = 16
    """Completions scored together."""


class VerifierSection(Section):
    name: str
    """A built-in verifier, or module:function of your own."""
    weight: Annotated[float, Field(ge=-100, le=100)] = 1.0
    """0: no part of the reward, but still a judge of what is correct."""
    answer: str = "answer"
    """The column that holds this verifier's gold."""
    gate: bool = False
    """Unless this part is fully rewarded, the whole reward is 0 and the completion is not correct."""
    counts: bool = True
    """Whether "correct" depends on this part; false: it only shapes the reward."""
    args: dict[str, Any] = {}


class OptimizerSection(Section):
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 2e-5
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0


class TrainSection(Section):
    steps: PositiveInt = 30
    memory_gb: Annotated[float, Field(gt=0)] = 8.0
    """What training may take, in 1e9 bytes; micro-batches are sized to it."""
    micro_batch_tokens: PositiveInt | None = None
    """Positions of one micro-batch; null: from memory_gb."""
    checkpoint_every: PositiveInt = 10
    """Steps between checkpoints; the last step always writes one."""
    keep_last: PositiveInt = 2
    """Checkpoints kept."""
    eval_every: PositiveInt | None = None
    """Steps between held-out evaluations; null: before and after only."""


class SftSection(Section):
    rows_per_step: PositiveInt = 64
    stop_at_correct: Annotated[float, Field(gt=0, le=1)] | None = None
    """Stop once this share of the sampled evaluation is correct (looked at every train.eval_every steps)."""


class DpoSection(Section):
    beta: Annotated[float, Field(gt=0, le=10)] = 0.1
    """How dear it is to leave the reference: the larger, the smaller the change that satisfies a pair."""
    pairs_per_step: PositiveInt = 64


class AlarmsSection(Section):
    """No alarm is configurable yet."""


class CurriculumSection(Section):
    kind: Literal["uniform"] = "uniform"
    """uniform: every prompt once an epoch, in a seeded order."""


class ClusterSection(Section):
    """One process; no cluster is configurable yet."""


class Config(Section):
    """A whole recipe."""

    schema_version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    """Names the run folder: letters, digits, '.', '_' and '-'."""
    description: str = ""
    """One line: what it trains, on what hardware, in what time (shown by `assay recipes`)."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    model: ModelSection = ModelSection()
    data: DataSection
    rollout: RolloutSection = RolloutSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    critic: CriticSection = CriticSection()
    reward_model: RewardModelSection | None = None
    verifiers: list[VerifierSection] = []
    """What is right. May be empty beside a reward model: then a score above 0 counts as right."""
    optimizer: OptimizerSection = OptimizerSection()
    train: TrainSection = TrainSection()
    sft: SftSection = SftSection()
    dpo: DpoSection = DpoSection()
    alarms: AlarmsSection = AlarmsSection()
    curriculum: CurriculumSection = CurriculumSection()
    cluster: ClusterSection = ClusterSection()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        problems = []
        if self.algorithm.overlong_buffer is not None and self.algorithm.overlong_buffer > self.rollout.max_new_tokens:
            problems.append(
                f"algorithm.overlong_buffer ({self.algorithm.overlong_buffer}) cannot exceed rollout.max_new_tokens "
                f"({self.rollout.max_new_tokens})"
            )
        if self.algorithm.dead_groups == "keep_kl" and self.algorithm.beta == 0:
            problems.append("algorithm.dead_groups = 'keep_kl' needs algorithm.beta > 0: there is no KL term to keep")
        if self.algorithm.kl_target is not None and self.algorithm.beta == 0:
            problems.append("algorithm.kl_target needs algorithm.beta > 0: it is the weight that is steered")
        if self.algorithm.kl_target is None and self.algorithm.kl_horizon != AlgorithmSection().kl_horizon:
            problems.append("algorithm.kl_horizon does nothing without algorithm.kl_target")
        if not self.verifiers and self.reward_model is None:
            problems.append("nothing gives a reward: add [[verifiers]] with a name, or a [reward_model]")
        if self.algorithm.minibatches > self.rollout.prompts_per_step:
            problems.append(
                f"algorithm.minibatches ({self.algorithm.minibatches}) cannot exceed rollout.prompts_per_step "
                f"({self.rollout.prompts_per_step}): a minibatch holds whole groups"
            )
        if problems:
            raise ValueError("\n  ".join(problems))
        return self

    def to_toml(self) -> str:
        """The resolved recipe as TOML (fields that are null are left out)."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


RESUMABLE = frozenset(
    {
        *("train.steps", "train.memory_gb", "train.micro_batch_tokens", "train.checkpoint_every", "train.keep_last"),
        *("train.eval_every", "rollout.kv_cache_gb", "rollout.max_running", "reward_model.batch_size"),
    }
)
"""What may change when a run goes on: how far it goes and what it may take, not what it learns from."""


def changed_fields(before: Config, after: Config) -> set[str]:
    """Dotted names of the fields that differ."""
    old, new = _flat(before.model_dump()), _flat(after.model_dump())
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe and apply ``a.b=c`` overrides. Raises ConfigError with every problem in one message."""
    if not path.is_file():
        raise ConfigError(f"there is no recipe {path.absolute()}; `assay recipes` lists those that ship")
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for override in overrides:
        _apply(tree, override)
    return parse_config(tree, str(path))


def parse_config(tree: dict[str, Any], source: str) -> Config:
    """Validate a tree of plain values. Raises ConfigError that names ``source``, the field and what is allowed."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        problems = "\n".join(f"  {line}" for line in _explain(error))
        raise ConfigError(f"{source} is not a valid recipe:\n{problems}") from error


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _apply(tree: dict[str, Any], override: str) -> None:
    """Set one dotted key; list items by index (verifiers.0.weight=0.5). Values are TOML, else plain strings."""
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"--set needs KEY=VALUE such as train.steps=10, got {override!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *parents, last = key.strip().split(".")
    place: Any = tree
    for name in parents:
        place = _descend(place, name, override)
    if isinstance(place, list):
        _descend(place, last, override)
        place[int(last)] = value
    else:
        place[last] = value


def _descend(place: Any, name: str, override: str) -> Any:
    if isinstance(place, list):
        if not name.isdecimal() or int(name) >= len(place):
            raise ConfigError(f"--set {override}: {name!r} is no index of a list of {len(place)}")
        return place[int(name)]
    if not isinstance(place, dict):
        raise ConfigError(f"--set {override}: {name!r} is inside a value, not a table")
    return place.setdefault(name, {})


def _explain(error: ValidationError) -> Iterator[str]:
    """One line a problem: where, what was given, what is allowed, and the nearest name for an unknown key."""
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"]) or "recipe"
        if problem["type"] == "extra_forbidden":
            yield f"{where}: unknown key{_suggest(problem['loc'])}"
        elif problem["type"] == "missing":
            yield f"{where}: is required"
        elif problem["type"] == "value_error":
            yield problem["msg"].removeprefix("Value error, ")
        else:
            yield f"{where}: got {problem['input']!r}; {problem['msg'][0].lower()}{problem['msg'][1:]}"


def _suggest(location: tuple[int | str, ...]) -> str:
    section: type[BaseModel] | None = Config
    for part in location[:-1]:
        if isinstance(part, str) and section is not None:
            field = section.model_fields.get(part)
            section = _section_type(field.annotation) if field else None
    if section is None:
        return ""
    allowed = list(section.model_fields)
    return f"{did_you_mean(str(location[-1]), allowed)}; allowed: {', '.join(allowed) or 'nothing yet'}"


def _section_type(annotation: Any) -> type[BaseModel] | None:
    """The section behind an annotation such as Section, list[Section] or Section | None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _section_type(inner)) is not None), None)
