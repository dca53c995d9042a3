"""What docs/algorithms/adding.md says is done here, on a copy of the package: one source file, and it trains."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "algorithms" / "adding.md").read_text(encoding="utf-8")

RECIPE = """
name = "ranked"
[model]
name = "{model}"
[data]
train = "builtin:addition?split=train&rows=64"
[rollout]
max_new_tokens = 4
[algorithm]
advantage = "group_ranked"
[[verifiers]]
name = "rewards:digits"
[train]
steps = 2
"""


@pytest.fixture
def package(tmp_path: Path) -> dict[str, str]:
    """An environment that imports a copy of assay with the page's estimator in it."""
    function, line, preset = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    edit(tmp_path / "src/assay/core/advantage.py", "ADVANTAGES: dict", f"{function}\n\n", before=True)
    edit(tmp_path / "src/assay/core/advantage.py", "Callable[..., Tensor]] = {\n", line)
    edit(tmp_path / "src/assay/core/presets.py", "PRESETS: dict[str, Preset] = {\n", preset)
    return {**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}{os.pathsep}{tmp_path}", "OMP_NUM_THREADS": "1"}


def edit(path: Path, mark: str, text: str, *, before: bool = False) -> None:
    """Put ``text`` after (or before) the one place that holds ``mark``."""
    source = path.read_text(encoding="utf-8")
    assert source.count(mark) == 1
    path.write_text(source.replace(mark, text + mark if before else mark + text), encoding="utf-8")


@pytest.mark.slow
def test_the_pages_estimator_keeps_the_laws_and_trains(
    package: dict[str, str], model_folder: Callable[..., Path], tmp_path: Path
) -> None:
    laws = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "group_ranked", ROOT / "tests" / "laws"]
    ended = subprocess.run([*laws, "-rA"], env=package, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count("PASSED") >= 5

    (tmp_path / "rewards.py").write_text(
        "def digits(prompts, completions, **columns):\n    return [sum(map(str.isdigit, c)) for c in completions]\n"
    )
    (tmp_path / "recipe.toml").write_text(RECIPE.format(model=model_folder("llama")))
    for change in ((), ("--set", "algorithm.preset=ranked")):
        command = [sys.executable, "-m", "assay", "train", "recipe.toml", *change]
        ended = subprocess.run(command, env=package, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
    metrics = (tmp_path / "runs" / "ranked-2" / "metrics.jsonl").read_text().splitlines()
    assert len(metrics) == 2


def test_without_the_line_the_name_is_unknown(assay: Callable[..., object], tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE.format(model="tiny-char"))
    ended = assay("train", tmp_path / "recipe.toml")
    assert "algorithm.advantage: there is no 'group_ranked'" in getattr(ended, "stderr", "")
