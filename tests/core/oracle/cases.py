"""The peers' reference vectors of tests/oracle, as tensors."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).parent.parent.parent / "oracle"


@dataclass(frozen=True)
class OracleCase:
    """One call of a peer's own function: what went in and what came out."""

    family: str
    id: str
    peer: str
    function: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    dtype: Mapping[str, str]
    """Of each output, as the peer returned it."""


Outputs = dict[str, Tensor]
Comparator = Callable[[OracleCase], Outputs]
"""What assay.core makes of a case's inputs, by the names of the case's outputs."""


@functools.cache
def _manifest() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((FOLDER / "manifest.json").read_text())["cases"]
    return cases


@functools.cache
def _arrays(family: str) -> Mapping[str, Any]:
    with np.load(FOLDER / f"{family}.npz") as archive:
        return {name: archive[name] for name in archive.files}


def load(family: str | None = None, **want: Any) -> list[OracleCase]:
    """The cases of a family (or all) whose fields (id, peer, function) or settings equal ``want``."""
    return [
        _case(entry)
        for entry in _manifest()
        if family in (None, entry["family"])
        and all(entry.get(key, entry["settings"].get(key)) == value for key, value in want.items())
    ]


def _case(entry: Mapping[str, Any]) -> OracleCase:
    arrays = _arrays(entry["family"])
    inputs, outputs = (
        {name: torch.from_numpy(arrays[key].copy()) for name, key in entry[side].items()}
        for side in ("inputs", "outputs")
    )
    fields = {name: entry[name] for name in ("family", "id", "peer", "function", "settings", "dtype")}
    return OracleCase(inputs=inputs, outputs=outputs, **fields)
