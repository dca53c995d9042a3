"""The peers' reference vectors of tests/oracle, as tensors."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

ORACLE = Path(__file__).parent.parent / "oracle"


@dataclass(frozen=True)
class OracleCase:
    """One call of a peer's own function: what went in and what came out."""

    id: str
    peer: str
    function: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]


@functools.cache
def _manifest() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((ORACLE / "manifest.json").read_text())["cases"]
    return cases


@functools.cache
def _arrays(family: str) -> Mapping[str, Any]:
    with np.load(ORACLE / f"{family}.npz") as archive:
        return {name: archive[name] for name in archive.files}


def _load(family: str, **want: Any) -> list[OracleCase]:
    arrays = _arrays(family)
    return [
        OracleCase(
            id=entry["id"],
            peer=entry["peer"],
            function=entry["function"],
            settings=entry["settings"],
            inputs={name: torch.from_numpy(arrays[key].copy()) for name, key in entry["inputs"].items()},
            outputs={name: torch.from_numpy(arrays[key].copy()) for name, key in entry["outputs"].items()},
        )
        for entry in _manifest()
        if entry["family"] == family
        and all(entry.get(key, entry["settings"].get(key)) == value for key, value in want.items())
    ]


@pytest.fixture
def oracle_cases() -> Callable[..., list[OracleCase]]:
    """``oracle_cases(family, **want)``: the cases whose fields (id, peer, function) or settings equal ``want``."""
    return _load
