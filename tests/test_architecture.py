"""The architecture as a test: who may import whom, no cycles, no lazy imports, no catch-all files, nothing too long.

Every finding names file, line and rule. Imports under ``if TYPE_CHECKING`` count like any other, and so do
``importlib.import_module`` and ``__import__`` with a literal name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = "assay"

BASE = frozenset({"types", "errors"})
CORE = BASE | {"core"}
BELOW_TRAIN = CORE | {
    *("curriculum", "telemetry", "models", "planner", "sandbox", "data", "config", "distributed"),
    *("verifiers", "rollout", "cluster"),
}
ALLOWED: dict[str, frozenset[str]] = {
    "types": frozenset(),
    "errors": frozenset(),
    "core": BASE,
    "curriculum": CORE,
    "telemetry": CORE,
    "models": CORE,
    "planner": BASE,
    "sandbox": BASE,
    "data": BASE,
    "config": BASE,
    "distributed": BASE,
    "verifiers": BASE | {"sandbox"},
    "rollout": CORE | {"models"},
    "cluster": CORE | {"models", "rollout", "verifiers", "distributed"},
    "train": BELOW_TRAIN,
    "view": frozenset({"telemetry"}),
    "cli": BELOW_TRAIN | {"train", "view", PACKAGE},
    "__main__": frozenset({"cli"}),
    PACKAGE: BELOW_TRAIN | {"train", "view"},  # the package root may re-export
}
"""What each part of the package may import besides itself."""

LAZY = ("peft", "vllm", "ray", "wandb", "mlflow", "torch.utils.tensorboard", "datasets")
"""Optional dependencies: the only imports allowed inside functions, except where starting fast matters."""

STARTS_FAST = ("src/assay/cli/", "src/assay/__init__.py", "src/assay/train/__init__.py")
"""Where `assay --help` and `import assay` begin: these import torch when it is needed."""

CATCH_ALL = {"utils", "common", "base", "helpers", "manager"}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80


@dataclass(frozen=True)
class Import:
    """One import as written: the module it names, and where."""

    module: str
    line: int
    in_function: bool


def sources() -> dict[str, str]:
    files = sorted((ROOT / "src" / PACKAGE).rglob("*.py"))
    return {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}


def module_name(path: str) -> str:
    """src/assay/core/kl.py -> assay.core.kl; src/assay/core/__init__.py -> assay.core."""
    parts = path.removeprefix("src/").removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """The part of the package that a module belongs to: the name below the root, or the root itself."""
    names = module.split(".")
    return names[1] if len(names) > 1 else names[0]


def imports_of(path: str, text: str, modules: set[str]) -> list[Import]:
    found = []
    for node, in_function in walk(ast.parse(text), in_function=False):
        for module in named_modules(node, path, modules):
            found.append(Import(module, node.lineno, in_function))
    return found


def walk(node: ast.AST, in_function: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        yield child, in_function
        lazy = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from walk(child, lazy)


def named_modules(node: ast.AST, path: str, modules: set[str]) -> list[str]:
    """The modules that one statement or call imports; ``from package import module`` names the module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        origin = absolute(node, path)
        below = [f"{origin}.{alias.name}" for alias in node.names]
        return [name if name in modules or name in LAZY else origin for name in below]
    if (
        isinstance(node, ast.Call)
        and node.args
        and ast.unparse(node.func).split(".")[-1]
        in (
            "import_module",
            "__import__",
        )
    ):
        name = node.args[0]
        return [name.value] if isinstance(name, ast.Constant) and isinstance(name.value, str) else []
    return []


def absolute(node: ast.ImportFrom, path: str) -> str:
    if node.level == 0:
        return node.module or ""
    package = path.removeprefix("src/").split("/")[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join(package + ([node.module] if node.module else []))


def is_ours(module: str) -> bool:
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


def check_direction(path: str, imports: list[Import]) -> Iterator[str]:
    part = part_of(module_name(path))
    if part not in ALLOWED:
        yield f"{path}:1: direction: {part} is not in the table of tests/test_architecture.py; say what it may import"
        return
    for found in imports:
        target = part_of(found.module)
        if is_ours(found.module) and target not in {part, *ALLOWED[part]}:
            allowed = ", ".join(sorted(ALLOWED[part])) or "nothing"
            yield f"{path}:{found.line}: direction: {part} may not import {target}, only: {allowed}"


def check_lazy(path: str, imports: list[Import]) -> Iterator[str]:
    if path.startswith(STARTS_FAST):
        return
    for found in imports:
        optional = any(found.module == name or found.module.startswith(f"{name}.") for name in LAZY)
        if found.in_function and not optional:
            yield f"{path}:{found.line}: lazy import: {found.module} inside a function is not an optional dependency"


def check_size_and_name(path: str, text: str) -> Iterator[str]:
    for name in path.removesuffix(".py").split("/"):
        if name in CATCH_ALL:
            yield f"{path}:1: catch-all name: nothing may be called {name!r}; name it after what it holds"
    lines = len(text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{path}:{lines}: file length: {lines} lines, at most {MAX_FILE_LINES}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{path}:{node.lineno}: function length: {node.name} has {length}, at most {MAX_FUNCTION_LINES}"


def check_cycles(imports: Mapping[str, list[Import]]) -> Iterator[str]:
    """One message for each import that closes a cycle, found by depth-first search."""
    paths = {module_name(path): path for path in imports}
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> Iterator[str]:
        for found in imports[paths[module]]:
            target = found.module
            if target in trail and target != module:
                cycle = " -> ".join([*trail[trail.index(target) :], target])
                yield f"{paths[module]}:{found.line}: import cycle: {cycle}"
            elif target in paths and target not in done and target not in trail:
                yield from visit(target, [*trail, target])
        done.add(module)

    for module in paths:
        if module not in done:
            yield from visit(module, [module])


def violations(tree: Mapping[str, str]) -> list[str]:
    """Every breach of a rule in a source tree, given as path -> text."""
    modules = {module_name(path) for path in tree}
    imports = {path: imports_of(path, text, modules) for path, text in tree.items()}
    found = list(check_cycles(imports))
    for path, text in tree.items():
        found += check_direction(path, imports[path])
        found += check_lazy(path, imports[path])
        found += check_size_and_name(path, text)
    return found


def test_the_package_keeps_to_its_architecture() -> None:
    tree = sources()
    assert "src/assay/core/zero_variance.py" in tree
    found = violations(tree)
    assert not found, f"{len(found)} violation(s):\n" + "\n".join(found)


def test_the_table_has_no_cycle_and_no_unknown_part() -> None:
    assert {target for allowed in ALLOWED.values() for target in allowed} <= ALLOWED.keys()
    ranked: set[str] = set()
    while len(ranked) < len(ALLOWED):
        ready = {part for part, allowed in ALLOWED.items() if part not in ranked and allowed <= ranked}
        assert ready, f"a cycle among {sorted(ALLOWED.keys() - ranked)}"
        ranked |= ready


CORE_FILE = "src/assay/core/kl.py"
LONG_BODY = "\n".join("    x = 1" for _ in range(80))

PLANTED: dict[str, tuple[dict[str, str], str]] = {
    "core imports models": (
        {CORE_FILE: "import math\nfrom assay.models.policy import Policy\n", "src/assay/models/policy.py": ""},
        "src/assay/core/kl.py:2: direction: core may not import models, only: errors, types",
    ),
    "from the root": (
        {CORE_FILE: "from assay import rollout\n", "src/assay/rollout/__init__.py": ""},
        "src/assay/core/kl.py:1: direction: core may not import rollout",
    ),
    "the root itself": (
        {CORE_FILE: "import assay\n", "src/assay/__init__.py": ""},
        "src/assay/core/kl.py:1: direction: core may not import assay",
    ),
    "relative import": (
        {CORE_FILE: "from ..train import grpo\n", "src/assay/train/grpo.py": ""},
        "src/assay/core/kl.py:1: direction: core may not import train",
    ),
    "relative import in a package's init": (
        {"src/assay/core/__init__.py": "from ..telemetry.store import Store\n", "src/assay/telemetry/store.py": ""},
        "src/assay/core/__init__.py:1: direction: core may not import telemetry",
    ),
    "for type checking": (
        {CORE_FILE: "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from assay.config import Config\n"},
        "src/assay/core/kl.py:3: direction: core may not import config",
    ),
    "by name": (
        {CORE_FILE: "import importlib\nx = importlib.import_module('assay.cli.main')\n"},
        "src/assay/core/kl.py:2: direction: core may not import cli",
    ),
    "view past the store": (
        {"src/assay/view/app.py": "from assay.train.grpo import run\n"},
        "src/assay/view/app.py:1: direction: view may not import train, only: telemetry",
    ),
    "a leaf imports something": (
        {"src/assay/types.py": "import assay.errors\n"},
        "src/assay/types.py:1: direction: types may not import errors, only: nothing",
    ),
    "a sibling": (
        {"src/assay/verifiers/math.py": "from assay.data.jsonl import read\n"},
        "src/assay/verifiers/math.py:1: direction: verifiers may not import data",
    ),
    "a part not in the table": (
        {"src/assay/plugins/x.py": ""},
        "src/assay/plugins/x.py:1: direction: plugins is not in the table",
    ),
    "cycle": (
        {
            "src/assay/core/a.py": "from assay.core import b\n",
            "src/assay/core/b.py": "\nfrom assay.core.c import x\n",
            "src/assay/core/c.py": "import assay.core.a\n",
        },
        "src/assay/core/c.py:1: import cycle: assay.core.a -> assay.core.b -> assay.core.c -> assay.core.a",
    ),
    "cycle through a package's init": (
        {
            "src/assay/core/__init__.py": "from assay.core.kl import k3\n",
            CORE_FILE: "from assay.core import something\n",
        },
        "src/assay/core/kl.py:1: import cycle: assay.core -> assay.core.kl -> assay.core",
    ),
    "lazy import of our own": (
        {"src/assay/train/grpo.py": "def f():\n    from assay.core import kl\n", CORE_FILE: ""},
        "src/assay/train/grpo.py:2: lazy import: assay.core.kl inside a function",
    ),
    "lazy import of a plain dependency": (
        {"src/assay/data/x.py": "class A:\n    def f(self):\n        if True:\n            import torch.utils\n"},
        "src/assay/data/x.py:4: lazy import: torch.utils inside a function",
    ),
    "catch-all file": (
        {"src/assay/models/utils.py": ""},
        "src/assay/models/utils.py:1: catch-all name: nothing may be called 'utils'",
    ),
    "catch-all package": (
        {"src/assay/models/common/x.py": ""},
        "src/assay/models/common/x.py:1: catch-all name: nothing may be called 'common'",
    ),
    "long file": (
        {CORE_FILE: "x = 1\n" * 401},
        "src/assay/core/kl.py:401: file length: 401 lines, at most 400",
    ),
    "long function": (
        {CORE_FILE: f"\nasync def f():\n{LONG_BODY}\n"},
        "src/assay/core/kl.py:2: function length: f has 81, at most 80",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_caught_once_with_file_line_and_rule(name: str) -> None:
    tree, message = PLANTED[name]
    found = violations(tree)
    assert len(found) == 1, found
    assert found[0].startswith(message)


def test_what_is_allowed_is_not_reported() -> None:
    tree = {
        "src/assay/__init__.py": "from assay.train.grpo import run\n",
        "src/assay/train/grpo.py": "from assay.core import kl\nfrom assay.planner import memory\nimport torch\n",
        "src/assay/core/__init__.py": "",
        CORE_FILE: "from . import masked\nfrom ..types import Row\n",
        "src/assay/core/masked.py": "x = 1\n" * 400,
        "src/assay/types.py": "def f():\n" + "    x = 1\n" * 79,
        "src/assay/planner/memory.py": "",
        "src/assay/models/policy.py": "def f():\n    import peft\n    from peft.tuners import lora\n",
        "src/assay/telemetry/sinks.py": (
            "def f():\n    from torch.utils.tensorboard import SummaryWriter\n    from torch.utils import tensorboard\n"
        ),
        "src/assay/cli/main.py": "import assay\ndef f():\n    import torch\n    from assay.train import grpo\n",
        "src/assay/view/app.py": "from assay.telemetry import sinks\n",
    }
    assert violations(tree) == []
