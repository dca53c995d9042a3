"""Verifiers by name: the built-in ones, and ``module:function`` for the user's own."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from assay.errors import VerifierError, did_you_mean
from assay.verifiers.contract import Verifier, describe
from assay.verifiers.exact import exact
from assay.verifiers.json_document import json_document
from assay.verifiers.json_fields import json_fields
from assay.verifiers.json_schema import json_schema
from assay.verifiers.language import language
from assay.verifiers.repetition import repetition
from assay.verifiers.think_format import think_format
from assay.verifiers.user import UserVerifier

VERIFIERS: dict[str, Callable[..., Verifier]] = {
    "exact": exact,
    "json": json_document,
    "json_fields": json_fields,
    "json_schema": json_schema,
    "language": language,
    "repetition": repetition,
    "think_format": think_format,
}
"""Name → factory. A factory's keyword arguments, with their types, are what ``args`` may hold."""


def build_verifier(name: str, args: Mapping[str, Any]) -> Verifier:
    """The named verifier. Raises VerifierError for an unknown name or module, and for args that do not fit."""
    if ":" in name:
        return UserVerifier(name, _import_function(name), args)
    if name not in VERIFIERS:
        raise VerifierError(
            f"there is no verifier {name!r}{did_you_mean(name, VERIFIERS)}; allowed: {', '.join(VERIFIERS)}, "
            f"or module:function for your own"
        )
    factory = VERIFIERS[name]
    _check_args(name, factory, args)
    return factory(**args)


def _check_args(name: str, factory: Callable[..., Verifier], args: Mapping[str, Any]) -> None:
    parameters = inspect.signature(factory, eval_str=True).parameters
    allowed = ", ".join(str(p) for p in parameters.values()) or "none"
    for key, value in args.items():
        if key not in parameters:
            raise VerifierError(
                f"verifier {name!r} takes no argument {key!r}{did_you_mean(key, parameters)}; allowed: {allowed}"
            )
        try:
            TypeAdapter(parameters[key].annotation).validate_python(value, strict=True)
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise VerifierError(
                f"verifier {name!r}, argument {key} = {value!r}: {problem}; allowed: {allowed}"
            ) from None
    missing = [key for key, p in parameters.items() if p.default is p.empty and key not in args]
    if missing:
        raise VerifierError(f"verifier {name!r} needs the argument {missing[0]!r}; allowed: {allowed}")


def _import_function(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise VerifierError(f"{name!r} is no module:function, for example my_rewards:brevity")
    # A console script does not see modules of the current folder. Last, so that they shadow nothing.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise VerifierError(
            f"verifier {name!r}: importing {module_name} failed ({describe(error)}); it is looked for in "
            f"{os.getcwd()} and in the Python path"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        problem = "there is no" if function is None else f"a {type(function).__name__}, no function, is"
        hint = did_you_mean(attribute, vars(module))
        raise VerifierError(f"verifier {name!r}: {problem} {attribute} in {module_name}{hint}")
    return function  # type: ignore[no-any-return]
