"""Verifier ``json``: the completion is one strict JSON document and nothing else."""

from __future__ import annotations

from typing import Literal

from assay.types import Row, Verdict
from assay.verifiers.contract import Verifier, accept, reject
from assay.verifiers.strict_json import StrictJsonError, parse_strict

_ROOTS: dict[str, type] = {"any": object, "object": dict, "array": list}


def json_document(*, root: Literal["any", "object", "array"] = "any") -> Verifier:
    """Reward 1 or 0; looks at no gold. ``root`` asks for a kind of document (``1`` is one of ``any``)."""

    def verify(row: Row, completion: str) -> Verdict:
        try:
            document = parse_strict(completion)
        except StrictJsonError as error:
            return reject(str(error))
        if not isinstance(document, _ROOTS[root]):
            return reject(f"expected an {root}, got {type(document).__name__}")
        return accept()

    return verify
