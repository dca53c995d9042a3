"""The user's own verifiers: functions with TRL's reward signature, and functions marked with ``@assay.verifier``.

TRL: ``fn(prompts, completions, **columns) -> list[float | None]``, called with lists of one. Chat prompts come
as lists of messages, and their completions as ``[{"role": "assistant", "content": …}]``. What TRL passes and
assay does not have (``completion_ids``, ``trainer_state``) counts as a column: a function that cannot do without
is refused when the rows are loaded.

Marked: ``fn(prompt, completion, answer, …) -> float | bool | Verdict | None``, with further columns by name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, TypeVar, get_args

from assay.errors import VerifierError
from assay.types import Row, Status, Verdict
from assay.verifiers.contract import accept, crash, describe, reject

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "__assay_verifier__"
_SIGNATURES = (
    "expected fn(prompts, completions, **columns) -> list[float | None], as TRL has it, or "
    "@assay.verifier over fn(prompt, completion, answer) -> float | bool | Verdict"
)
_UNGRADED: tuple[Status, ...] = ("crash", "unscorable")


def verifier(function: Function) -> Function:
    """Mark ``fn(prompt, completion, answer) -> float | bool | Verdict | None`` as a verifier; it stays callable.

    Columns that it names as further parameters are passed too. A number of 1 or more counts as correct.
    """
    setattr(function, _MARK, True)
    return function


class UserVerifier:
    """A user's function as a ``Verifier``. Whatever the function does, the outcome is a verdict.

    Raises VerifierError when built around a function that could never be called.
    """

    def __init__(self, name: str, function: Callable[..., Any], args: Mapping[str, Any]) -> None:
        self._name = name
        self._function = function
        self._args = dict(args)
        self._marked = bool(getattr(function, _MARK, False))
        if inspect.iscoroutinefunction(function):
            raise VerifierError(f"{name} is an async function, which is not supported; make it a plain one")
        parameters = _parameters(name, function)
        self._any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        given = list(parameters)[:3] if self._marked else ["prompts", "completions", "answer"]
        by_name = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self._positional = frozenset(given) if self._marked else frozenset()
        self._names = frozenset(by_name) - self._positional
        self._check_parameters(parameters)
        required = {n for n, p in by_name.items() if p.default is p.empty}
        self.required_columns = frozenset(required - set(given) - set(self._args))
        """Columns that every row must have, since the function has no default for them."""

    def __call__(self, row: Row, completion: str) -> Verdict | None:
        try:
            result = self._call_marked(row, completion) if self._marked else self._call_trl(row, completion)
            return _verdict(result)
        # SystemExit too: a reward function that calls sys.exit must not end the training.
        except (Exception, SystemExit) as error:
            return crash(describe(error))

    def _check_parameters(self, parameters: Mapping[str, inspect.Parameter]) -> None:
        positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
        fits = len(positional) >= 3 or open_ended if self._marked else self._accepts("completions")
        if not fits:
            shown = ", ".join(str(p) for p in parameters.values())
            raise VerifierError(f"{self._name} has the parameters ({shown}); {_SIGNATURES}")
        for name in self._args:
            if not self._accepts(name):
                allowed = ", ".join(sorted(self._names - {"prompts", "completions"})) or "none"
                raise VerifierError(f"{self._name} takes no argument {name!r}; allowed: {allowed}")

    def _accepts(self, name: str) -> bool:
        return name in self._names or (self._any_name and name not in self._positional)

    def _call_marked(self, row: Row, completion: str) -> Any:
        columns = {name: value for name, value in row.columns.items() if self._accepts(name)}
        prompt = row.prompt if isinstance(row.prompt, str) else [dict(message) for message in row.prompt]
        return self._function(prompt, completion, row.answer, **{**columns, **self._args})

    def _call_trl(self, row: Row, completion: str) -> Any:
        chat = not isinstance(row.prompt, str)
        offered = {
            **{name: [value] for name, value in row.columns.items()},
            "answer": [row.answer],
            **self._args,
            "prompts": [[dict(m) for m in row.prompt] if not isinstance(row.prompt, str) else row.prompt],
            "completions": [[{"role": "assistant", "content": completion}] if chat else completion],
        }
        result = self._function(**{name: value for name, value in offered.items() if self._accepts(name)})
        if not isinstance(result, list | tuple) or len(result) != 1:
            raise TypeError(f"for 1 completion it returned {repr(result)[:100]}, expected a list of 1 reward")
        return result[0]


def _parameters(name: str, function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise VerifierError(f"{name} does not tell its parameters ({error}); {_SIGNATURES}") from None


def _verdict(result: Any) -> Verdict | None:
    """What a function returned, as a verdict. Raises TypeError or ValueError for what cannot be one."""
    if result is None:
        return None
    if isinstance(result, Verdict):
        if result.status not in get_args(Status):
            raise ValueError(f"it returned the status {result.status!r}, expected one of {', '.join(get_args(Status))}")
        if math.isinf(result.reward) or math.isnan(result.reward) != (result.status in _UNGRADED):
            raise ValueError(
                f"it returned reward {result.reward} with status {result.status!r}; NaN goes with crash or unscorable, "
                f"and a finite number with the others"
            )
        return result
    # Scalars of NumPy and torch count as the numbers they hold.
    value = result.item() if not isinstance(result, Real) and hasattr(result, "item") else result
    if not isinstance(value, Real):
        raise TypeError(f"it returned {repr(result)[:100]} ({type(result).__name__}), expected a number or None")
    reward = float(value)
    if not math.isfinite(reward):
        raise ValueError(f"it returned {reward}, expected a finite number, or None where it does not apply")
    if reward >= 1:
        return Verdict(reward, "ok", True) if reward != 1 else accept()
    return reject(f"reward {reward:g}", reward)
