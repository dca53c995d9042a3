"""The recipe: what is refused, with what message, and that a resolved recipe reads back as itself."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from assay.config import Config, load_config, parse_config
from assay.errors import ConfigError

ROOT = Path(__file__).parent.parent
RECIPES = sorted(p for p in (ROOT / "recipes").glob("*.toml") if not p.stem.endswith("-pipeline"))


def tree(path: str = "", value: Any = None) -> dict[str, Any]:
    """The smallest recipe, with one dotted field set."""
    whole: dict[str, Any] = {"name": "x", "data": {"train": "rows.jsonl"}, "verifiers": [{"name": "exact"}]}
    if path.startswith("reward_model."):
        whole["reward_model"] = {"name": "a-reward-model"}
    if path.startswith("algorithm.kl_"):
        whole["algorithm"] = {"beta": 0.1, "kl_target": 0.1}
    place: Any = whole
    *parents, last = path.split(".")
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
    if path:
        place[last] = value
    return whole


def refusal(path: str, value: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(tree(path, value), "recipe.toml")
    return str(caught.value)


AT_LEAST, AT_MOST = "greater than or equal to {}", "less than or equal to {}"
ABOVE, BELOW = "greater than {}", "less than {}"
BOUNDS: list[tuple[str, Any, Any, str]] = [
    # field, the last value that is allowed, the first that is not, what is said
    ("seed", 0, -1, AT_LEAST.format(0)),
    ("seed", 2**63 - 1, 2**63, BELOW.format(2**63)),
    ("algorithm.resample_rounds", 1, 0, AT_LEAST.format(1)),
    ("algorithm.resample_rounds", 20, 21, AT_MOST.format(20)),
    ("algorithm.overlong_buffer", 0, -1, AT_LEAST.format(0)),
    ("algorithm.eps_low", 1.0, 1.1, AT_MOST.format(1)),
    ("algorithm.eps_low", 1e-9, 0.0, ABOVE.format(0)),
    ("algorithm.eps_high", 100.0, 100.1, AT_MOST.format(100)),
    ("algorithm.eps_high", 1e-9, 0.0, ABOVE.format(0)),
    ("algorithm.dual_clip", 1.1, 1.0, ABOVE.format(1)),
    ("algorithm.dual_clip", 100.0, 100.1, AT_MOST.format(100)),
    ("algorithm.entropy_bonus", 0.0, -0.1, AT_LEAST.format(0)),
    ("algorithm.entropy_bonus", 1.0, 1.1, AT_MOST.format(1)),
    ("algorithm.importance_cap", 1.1, 1.0, ABOVE.format(1)),
    ("algorithm.importance_cap", 1000.0, 1000.1, AT_MOST.format(1000)),
    ("model.lora_rank", 0, -1, AT_LEAST.format(0)),
    ("model.lora_rank", 1024, 1025, AT_MOST.format(1024)),
    ("data.eval_rows", 1, 0, AT_LEAST.format(1)),
    ("rollout.prompts_per_step", 1, 0, AT_LEAST.format(1)),
    ("rollout.max_new_tokens", 1, 0, AT_LEAST.format(1)),
    ("rollout.temperature", 1e-9, 0.0, ABOVE.format(0)),
    ("rollout.temperature", 10.0, 10.1, AT_MOST.format(10)),
    ("rollout.max_running", 1, 0, AT_LEAST.format(1)),
    ("rollout.kv_cache_gb", 1e-9, 0.0, ABOVE.format(0)),
    ("algorithm.group_size", 1, 0, AT_LEAST.format(1)),
    ("algorithm.group_size", 1024, 1025, AT_MOST.format(1024)),
    ("algorithm.beta", 0.0, -1e-9, AT_LEAST.format(0)),
    ("algorithm.beta", 10.0, 10.1, AT_MOST.format(10)),
    ("algorithm.kl_target", 1e-9, 0.0, ABOVE.format(0)),
    ("reward_model.weight", -100.0, -100.1, AT_LEAST.format(-100)),
    ("reward_model.weight", 100.0, 100.1, AT_MOST.format(100)),
    ("reward_model.batch_size", 1, 0, AT_LEAST.format(1)),
    ("algorithm.kl_horizon", 1e-9, 0.0, ABOVE.format(0)),
    ("critic.learning_rate", 1e-12, 0.0, ABOVE.format(0)),
    ("critic.learning_rate", 1.0, 1.1, AT_MOST.format(1)),
    ("critic.gamma", 1.0, 1.1, AT_MOST.format(1)),
    ("critic.gamma", 1e-9, 0.0, ABOVE.format(0)),
    ("critic.lam", 0.0, -0.1, AT_LEAST.format(0)),
    ("critic.lam", 1.0, 1.1, AT_MOST.format(1)),
    ("critic.value_clip", 0.0, -0.1, AT_LEAST.format(0)),
    ("algorithm.minibatches", 1, 0, AT_LEAST.format(1)),
    ("algorithm.epochs", 1, 0, AT_LEAST.format(1)),
    ("verifiers.0.weight", -100.0, -100.1, AT_LEAST.format(-100)),
    ("verifiers.0.weight", 100.0, 100.1, AT_MOST.format(100)),
    ("optimizer.learning_rate", 1e-12, 0.0, ABOVE.format(0)),
    ("optimizer.learning_rate", 1.0, 1.1, AT_MOST.format(1)),
    ("optimizer.warmup_steps", 0, -1, AT_LEAST.format(0)),
    ("optimizer.beta1", 0.0, -0.1, AT_LEAST.format(0)),
    ("optimizer.beta1", 0.999, 1.0, BELOW.format(1)),
    ("optimizer.beta2", 0.0, -0.1, AT_LEAST.format(0)),
    ("optimizer.beta2", 0.999, 1.0, BELOW.format(1)),
    ("optimizer.weight_decay", 0.0, -0.1, AT_LEAST.format(0)),
    ("optimizer.weight_decay", 1.0, 1.1, AT_MOST.format(1)),
    ("optimizer.max_grad_norm", 1e-9, 0.0, ABOVE.format(0)),
    ("train.steps", 1, 0, AT_LEAST.format(1)),
    ("train.memory_gb", 1e-9, 0.0, ABOVE.format(0)),
    ("train.micro_batch_tokens", 1, 0, AT_LEAST.format(1)),
    ("train.checkpoint_every", 1, 0, AT_LEAST.format(1)),
    ("train.keep_last", 1, 0, AT_LEAST.format(1)),
    ("train.eval_every", 1, 0, AT_LEAST.format(1)),
    ("sft.rows_per_step", 1, 0, AT_LEAST.format(1)),
    ("sft.stop_at_correct", 1e-9, 0.0, ABOVE.format(0)),
    ("sft.stop_at_correct", 1.0, 1.1, AT_MOST.format(1)),
    ("dpo.beta", 1e-9, 0.0, ABOVE.format(0)),
    ("dpo.beta", 10.0, 10.1, AT_MOST.format(10)),
    ("dpo.pairs_per_step", 1, 0, AT_LEAST.format(1)),
]


@pytest.mark.parametrize(("path", "allowed", "refused", "says"), BOUNDS)
def test_every_bound_is_where_it_says(path: str, allowed: Any, refused: Any, says: str) -> None:
    parse_config(tree(path, allowed), "recipe.toml")
    message = refusal(path, refused)
    assert message.startswith(f"recipe.toml is not a valid recipe:\n  {path}: got {refused!r}; ")
    assert says in message


def numbers(section: type[Any], prefix: str = "") -> set[str]:
    """Every field of the recipe that holds a number, dotted."""
    found = set()
    for name, field in section.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        if inner is not None:
            found |= numbers(field.annotation, f"{prefix}{name}.")  # type: ignore[arg-type]
        elif re.search(r"\b(int|float)\b", str(field.annotation)):
            found.add(f"{prefix}{name}")
    return found


def test_no_number_is_without_a_bound() -> None:
    assert numbers(Config) - {path for path, *_ in BOUNDS} == set()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1", [1], None])
@pytest.mark.parametrize("path", ["train.steps", "algorithm.beta"])
def test_a_value_of_another_kind_is_refused(path: str, value: Any) -> None:
    assert f"{path}: got {value!r}; input should be a" in refusal(path, value)


def test_a_whole_number_is_a_number_but_a_fraction_no_count() -> None:
    assert parse_config(tree("train.memory_gb", 4), "r").train.memory_gb == 4.0
    assert "train.steps: got 2.0; " in refusal("train.steps", 2.0)


@pytest.mark.parametrize(
    ("path", "value", "choices"),
    [
        ("model.dtype", "float16", ("float32", "bfloat16")),
        ("rollout.engine", "vlm", ("paged", "reference")),
        ("algorithm.dead_groups", "keep", ("drop", "keep_kl")),
        ("optimizer.schedule", "step", ("constant", "linear", "cosine")),
        ("curriculum.kind", "hard", ("uniform",)),
        ("schema_version", 2, ("1",)),
    ],
)
def test_a_choice_lists_what_is_allowed(path: str, value: Any, choices: tuple[str, ...]) -> None:
    message = refusal(path, value)
    assert f"{path}: got {value!r}; " in message
    assert all(choice in message for choice in choices)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../up", "a b", "ä", "x" * 101, "a\n"])
def test_a_name_that_is_no_folder_name_is_refused(name: str) -> None:
    assert f"name: got {name!r}; string should " in refusal("name", name)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("trian", "trian: unknown key (did you mean 'train'?); allowed: schema_version, name,"),
        ("train.step", "train.step: unknown key (did you mean 'steps'?); allowed: steps, memory_gb,"),
        ("algorithm.groupsize", "algorithm.groupsize: unknown key (did you mean 'group_size'?)"),
        ("verifiers.0.wieght", "verifiers.0.wieght: unknown key (did you mean 'weight'?); allowed: name, weight,"),
        ("train.zzz", "train.zzz: unknown key; allowed: steps,"),
        ("alarms.kl", "alarms.kl: unknown key; allowed: nothing yet"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(path: str, says: str) -> None:
    assert says in refusal(path, 1)


def test_a_verifiers_arguments_are_its_own_affair() -> None:
    config = parse_config(tree("verifiers.0.args", {"anything": [1, {"deep": True}]}), "r")
    assert config.verifiers[0].args == {"anything": [1, {"deep": True}]}


def test_what_is_required() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"data": {}}, "r")
    assert str(caught.value) == ("r is not a valid recipe:\n  name: is required\n  data.train: is required")
    assert "nothing gives a reward: add [[verifiers]] with a name, or a [reward_model]" in refusal("verifiers", [])


def test_rules_between_fields_are_all_named_with_the_numbers() -> None:
    whole = tree("algorithm", {"dead_groups": "keep_kl", "minibatches": 5})
    with pytest.raises(ConfigError) as caught:
        parse_config(whole, "r")
    assert str(caught.value) == (
        "r is not a valid recipe:\n"
        "  algorithm.dead_groups = 'keep_kl' needs algorithm.beta > 0: there is no KL term to keep\n"
        "  algorithm.minibatches (5) cannot exceed rollout.prompts_per_step (4): a minibatch holds whole groups"
    )
    parse_config({**whole, "algorithm": {**whole["algorithm"], "beta": 0.1, "minibatches": 4}}, "r")


def test_every_problem_is_in_one_message() -> None:
    whole = {**tree("train.steps", 0), "modle": {}, "algorithm": {"beta": -1.0}}
    del whole["name"]
    with pytest.raises(ConfigError) as caught:
        parse_config(whole, "r")
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    for part in ("train.steps: got 0", "modle: unknown key", "algorithm.beta: got -1.0", "name: is required"):
        assert sum(part in line for line in lines) == 1


def test_a_recipe_cannot_be_changed() -> None:
    config = parse_config(tree(), "r")
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        config.train.steps = 1  # type: ignore[misc]


SETTINGS: list[tuple[str, str, Any]] = [
    ("train.steps=7", "train.steps", 7),
    (" train.steps =7", "train.steps", 7),
    ("optimizer.learning_rate=3e-5", "optimizer.learning_rate", 3e-5),
    ("seed=5", "seed", 5),
    ("name=other", "name", "other"),
    ('name="quoted"', "name", "quoted"),
    ("data.train=builtin:addition?split=train&rows=64", "data.train", "builtin:addition?split=train&rows=64"),
    ("data.train=a=b.jsonl", "data.train", "a=b.jsonl"),
    ("data.train=", "data.train", ""),
    ("model.name=runs/x/model", "model.name", "runs/x/model"),
    ("verifiers.0.weight=0.5", "verifiers.0.weight", 0.5),
    ("verifiers.1.name=json", "verifiers.1.name", "json"),
    ("verifiers.0.args.deep.flag=true", "verifiers.0.args", {"deep": {"flag": True}}),
    ("verifiers.0.args={a = [1, 2], b = 'x'}", "verifiers.0.args", {"a": [1, 2], "b": "x"}),
    ('verifiers=[{name = "json"}]', "verifiers.0.name", "json"),
    ("sft.stop_at_correct=0.4", "sft.stop_at_correct", 0.4),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(
        'name = "x"\n[data]\ntrain = "rows.jsonl"\n[[verifiers]]\nname = "exact"\n[[verifiers]]\nname = "json"\n'
    )
    return path


@pytest.mark.parametrize(("setting", "path", "value"), SETTINGS)
def test_set_reads_values_as_toml_and_else_as_text(setting: str, path: str, value: Any, file: Path) -> None:
    found: Any = load_config(file, [setting])
    for name in path.split("."):
        found = found[int(name)] if isinstance(found, list) else getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_later_settings_win(file: Path) -> None:
    assert load_config(file, ["seed=1", "train.steps=2", "seed=3"]).seed == 3


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("train.steps", "--set needs KEY=VALUE such as train.steps=10, got 'train.steps'"),
        ("=5", "--set needs KEY=VALUE"),
        ("", "--set needs KEY=VALUE"),
        ("verifiers.2.weight=1", "'2' is no index of a list of 2"),
        ("verifiers.-1.weight=1", "'-1' is no index of a list of 2"),
        ("verifiers.²=1", "'²' is no index of a list of 2"),
        ("verifiers.first=1", "'first' is no index of a list of 2"),
        ("name.x.y=1", "'x' is inside a value, not a table"),
        ("train.stepz=1", "train.stepz: unknown key (did you mean 'steps'?)"),
        ("train.steps=many", "train.steps: got 'many'; input should be a valid integer"),
        ("a..b=1", "a: unknown key"),
    ],
)
def test_a_setting_that_cannot_be_applied_says_why(setting: str, says: str, file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(file, [setting])
    assert says in str(caught.value)


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", b"[data]\n[data]\n"])
def test_a_file_that_is_no_toml(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"broken.toml is not valid TOML: "):
        load_config(path)


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match=f"there is no recipe {path}; `assay recipes` lists"):
            load_config(path)


@pytest.mark.parametrize(
    "overrides", [[], ["sft.stop_at_correct=0.4", "train.eval_every=2", "verifiers.0.args={a = [1.5, {b = true}]}"]]
)
def test_a_resolved_recipe_reads_back_as_itself(overrides: list[str], file: Path, tmp_path: Path) -> None:
    config = load_config(file, overrides)
    again = tmp_path / "again.toml"
    again.write_text(config.to_toml())
    assert load_config(again) == config
    # Resolved: the defaults are in it.
    assert tomllib.loads(config.to_toml())["train"]["steps"] == 30


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_that_ship_load_and_say_what_they_are(path: Path) -> None:
    config = load_config(path)
    assert config.name == path.stem
    assert config.description
    again = parse_config(tomllib.loads(config.to_toml()), "again")
    assert again == config


def test_recipes_ship() -> None:
    assert len(RECIPES) >= 3
