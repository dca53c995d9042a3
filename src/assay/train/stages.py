"""A pipeline file: stages in a row, each a recipe that starts from the last one's model; read as a whole."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field, ValidationError

from assay.config import Config, PositiveInt, Section, load_config
from assay.errors import ConfigError, did_you_mean

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=60)]

START = "start"
"""The name of the evaluation before the first stage."""

ROWS = "rows.jsonl"
"""What a sample stage leaves in its folder."""


class EvaluationSection(Section):
    """How the model is measured before the first stage and after each one that trains."""

    recipe: str
    """Whose data.eval, verifiers and rollout settings are used; relative to the pipeline file."""
    prompts: PositiveInt | None = None
    """Held-out rows; null: the recipe's data.eval_rows."""
    samples: PositiveInt = 8
    """Completions of each row; pass@1 and pass@samples are reported."""
    start: bool = True
    """Whether the model before the first stage is measured too."""


class StageSection(Section):
    name: Name
    """Names the stage's folder."""
    command: Literal["sft", "train", "sample"]
    recipe: str
    """Relative to the pipeline file."""
    set: Annotated[dict[str, Any], Field(default_factory=dict)]
    """Fields of the recipe to override: tables, or dotted names in quotes."""
    rows_from: str | None = None
    """An earlier sample stage, on whose rows this one trains."""
    samples: PositiveInt | None = None
    """Completions of each prompt (sample alone); null: algorithm.group_size."""
    per_prompt: PositiveInt = 1
    """Different correct completions of a prompt kept at most (sample alone)."""


class PipelineFile(Section):
    name: Name
    description: str = ""
    evaluation: EvaluationSection
    stages: Annotated[list[StageSection], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline with its recipes read; the models between the stages lie in ``folder``."""

    file: PipelineFile
    folder: Path
    configs: tuple[Config, ...]
    """One a stage, with its overrides, model and rows."""
    evaluation: Config

    def stages(self) -> Iterator[tuple[StageSection, Config]]:
        return zip(self.file.stages, self.configs, strict=True)

    def stage_folder(self, name: str) -> Path:
        return self.folder / name


def read_pipeline_file(path: Path) -> PipelineFile:
    """Read and validate. Raises ConfigError with every problem in one message."""
    if not path.is_file():
        raise ConfigError(f"there is no pipeline file {path.absolute()}")
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    try:
        file = PipelineFile.model_validate(tree)
    except ValidationError as error:
        problems = "\n".join(
            f"  {'.'.join(map(str, e['loc'])) or 'pipeline'}: {e['msg'][0].lower()}{e['msg'][1:]}"
            for e in error.errors()
        )
        raise ConfigError(f"{path} is not a valid pipeline:\n{problems}") from error
    if problems := "\n".join(f"  {problem}" for problem in _inconsistencies(file)):
        raise ConfigError(f"{path} is not a valid pipeline:\n{problems}")
    return file


def plan(path: Path, folder: Path) -> Plan:
    """The pipeline with every recipe read, each stage's model set to the last trained one's."""
    file = read_pipeline_file(path)
    configs: list[Config] = []
    model: str | None = None
    for stage in file.stages:
        given = {**stage.set}
        if model is not None:
            given["model.name"] = model
        if stage.rows_from is not None:
            given["data.train"] = str(folder / stage.rows_from / ROWS)
        configs.append(without_evaluation(load_config(path.parent / stage.recipe, overrides(given))))
        if stage.command != "sample":
            model = str(folder / stage.name / "model")
    evaluation = load_config(path.parent / file.evaluation.recipe)
    if evaluation.data.eval is None:
        raise ConfigError(f"{path}: the recipe of [evaluation], {file.evaluation.recipe}, names no data.eval")
    return Plan(file, folder, tuple(configs), evaluation)


def without_evaluation(config: Config) -> Config:
    """The stage's own evaluation before and after is left out: the pipeline measures. One during training stays."""
    if config.train.eval_every is not None:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"eval": None})})


def overrides(tree: Mapping[str, Any], prefix: str = "") -> list[str]:
    """``a.b=value`` for every leaf, as `--set` takes them."""
    found: list[str] = []
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found += overrides(value, f"{prefix}{name}.")
        else:
            found.append(f"{prefix}{name}={tomli_w.dumps({'v': value}).partition('=')[2].strip()}")
    return found


def _inconsistencies(file: PipelineFile) -> Iterator[str]:
    seen: dict[str, str] = {}
    trained = False
    for i, stage in enumerate(file.stages):
        where = f"stages.{i} ({stage.name})"
        if stage.name in seen or stage.name == START:
            yield f"{where}: the name is taken; every stage needs its own, and {START!r} is the model before the first"
        if stage.rows_from is not None:
            sources = [name for name, command in seen.items() if command == "sample"]
            if stage.command == "sample":
                yield f"{where}: rows_from is for stages that train"
            elif stage.rows_from not in sources:
                hint = did_you_mean(stage.rows_from, sources)
                yield (
                    f"{where}: rows_from = {stage.rows_from!r} is no earlier sample stage{hint}; allowed: "
                    f"{', '.join(sources) or 'none here'}"
                )
        if stage.command != "sample" and (stage.samples is not None or stage.per_prompt != 1):
            yield f"{where}: samples and per_prompt are for command = 'sample'"
        trained = trained or stage.command != "sample"
        seen[stage.name] = stage.command
    if not trained:
        yield "stages: none of them trains; add one with command = 'sft' or 'train'"
