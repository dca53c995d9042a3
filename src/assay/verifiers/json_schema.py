"""Verifier ``json_schema``: strict JSON that is valid under a JSON Schema (Draft 2020-12 unless it says otherwise).

Nothing is ever fetched: a ``$ref`` must lead into the schema itself or to a published meta-schema. ``format``
is an annotation, as the specification has it by default. Patterns are Python regular expressions run without
a time limit: a pattern that backtracks catastrophically belongs in the sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.validators import extend, validator_for
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from referencing import Resource
from referencing.exceptions import NoSuchResource, Unresolvable
from referencing.jsonschema import DRAFT202012

from assay.types import Row, Verdict
from assay.verifiers.contract import Verifier, accept, describe, reject, unscorable
from assay.verifiers.strict_json import StrictJsonError, parse_strict

_PROBES: tuple[Any, ...] = (None, True, 0, "", [], {}, [0], {"": 0})
_LONGEST_CHAIN = 64


def json_schema(*, schema: Mapping[str, Any] | None = None) -> Verifier:
    """Reward 1 or 0. The schema is the argument or, without one, the row's answer (an object, or JSON text).

    A schema that is invalid, or refers to what is not there, makes the row unscorable.
    """

    def verify(row: Row, completion: str) -> Verdict:
        validator = compiled(row.answer if schema is None else schema)
        if isinstance(validator, str):
            return unscorable(validator)
        try:
            document = parse_strict(completion)
        except StrictJsonError as error:
            return reject(str(error))
        return _validate(validator, document)

    return verify


def _validate(validator: Any, document: Any) -> Verdict:
    try:
        error = next(validator.iter_errors(document), None)
    except RecursionError:
        # The schema has passed its probes, so it is this document that is nested too deeply for it.
        return reject("nested too deeply for this schema")
    return accept() if error is None else reject(f"{error.json_path}: {error.message}")


def compiled(schema: Any) -> Any:
    """A validator, or as a string the reason why the schema cannot be used."""
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
        return _compiled(text)
    except (TypeError, ValueError, RecursionError) as error:
        return f"the schema is not JSON: {describe(error)}"


@lru_cache(maxsize=1024)
def _compiled(text: str) -> Any:
    """By the schema's text, since rows often share one."""
    schema = parse_strict(text)
    if not isinstance(schema, dict):
        return f"the schema must be an object, got {type(schema).__name__}"
    dialect = schema.get("$schema")
    kind = Draft202012Validator if dialect is None else _dialect(dialect)
    if kind is None:
        return f"the schema's $schema {dialect!r} is no draft that is known"
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        return f"the schema is invalid at {error.json_path}: {error.message}"
    except RecursionError:
        return "the schema is nested too deeply"
    validator = extend(kind, {"uniqueItems": _unique_items})(schema, registry=REGISTRY)
    return _unusable(schema, validator) or validator


def _dialect(uri: Any) -> Any:
    # The empty default stands for "not found"; the library's own default would guess the newest draft.
    return validator_for({"$schema": uri}, default=None) if isinstance(uri, str) else None


def _unusable(schema: Mapping[str, Any], validator: Any) -> str | None:
    """Why a schema that is well-formed still cannot judge: a dangling reference, or one that leads to itself."""
    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    try:
        for ref, resolver in _references(resource, REGISTRY.resolver_with_root(resource)):
            if _goes_round(ref, resolver):
                return f"the schema has a $ref that leads back to itself: {ref}"
    except (Unresolvable, NoSuchResource) as error:
        return f"the schema has a $ref that leads nowhere (nothing is fetched): {error}"
    try:
        for probe in _PROBES:
            next(validator.iter_errors(probe), None)
    except RecursionError:
        return "the schema has a $ref that leads back to itself"
    return None


def _goes_round(ref: str, resolver: Any) -> bool:
    """Whether a chain of bare references never ends. Raises what the registry raises for one that leads nowhere."""
    for _ in range(_LONGEST_CHAIN):
        found = resolver.lookup(ref)
        if not isinstance(found.contents, Mapping) or not isinstance(found.contents.get("$ref"), str):
            return False
        ref, resolver = found.contents["$ref"], found.resolver
    return True


def _references(resource: Any, resolver: Any) -> Iterator[tuple[str, Any]]:
    contents = resource.contents
    if isinstance(contents, Mapping):
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(contents.get(keyword), str):
                yield contents[keyword], resolver
    for child in resource.subresources():
        yield from _references(child, resolver.in_subresource(child))


def _unique_items(validator: Any, asked: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """In place of the library's check, whose time is quadratic for lists of objects: 100 kB would take minutes."""
    if asked and validator.is_type(instance, "array"):
        keys = {json.dumps(_canonical(item), sort_keys=True) for item in instance}
        if len(keys) < len(instance):
            yield ValidationError("the items are not unique")


def _canonical(value: Any) -> Any:
    """1.0 as 1, so that equal JSON has equal text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    return value
