"""assay eval: pass@1, pass@k and maj@k of a model on a data set, each with a 95 % interval."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Annotated, Any

import typer

from assay.cli.options import JsonOption, parse_args
from assay.errors import ConfigError


def evaluate(
    model: Annotated[str, typer.Option(help="Built-in name, Hugging Face folder or hub name.")],
    data: Annotated[str, typer.Option(help="A .jsonl or .parquet file, or builtin:NAME?split=….")],
    verifier: Annotated[str, typer.Option(help="A verifier's name, or module:function.")],
    args: Annotated[str, typer.Option(help="The verifier's arguments, as JSON.")] = "{}",
    prompts: Annotated[int | None, typer.Option(min=1, help="Use only the first N rows.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Completions of each prompt.")] = 1,
    k: Annotated[str, typer.Option("-k", help="Comma-separated k for pass@k and maj@k.")] = "1",
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: greedy.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a model: pass@k (unbiased) and maj@k with 95 % intervals over prompts."""
    ks = _parse_ks(k, samples)
    from assay.train.benchmark import benchmark

    # A user's function that prints must not break the document on stdout.
    with contextlib.redirect_stdout(sys.stderr):
        result = benchmark(
            model=model,
            data=data,
            verifier=verifier,
            args=parse_args(args),
            prompts=prompts,
            samples=samples,
            ks=ks,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            on_progress=lambda done, total: _say(f"\r{done}/{total} completions"),
        )
    _say("\n")
    print(json.dumps(result, indent=1) if as_json else _table(result))


def _parse_ks(text: str, samples: int) -> list[int]:
    try:
        ks = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise ConfigError(f"-k needs whole numbers such as 1,8, got {text!r}") from error
    if ks[0] < 1 or ks[-1] > samples:
        raise ConfigError(f"-k {text}: every k must be between 1 and --samples ({samples})")
    return ks


def _table(result: dict[str, Any]) -> str:
    lines = [f"{result['n']} prompts × {result['samples']} completions"]
    for name in ("pass_at", "maj_at"):
        for k, share in result[name].items():
            low, high = result[f"{name}_interval"][k]
            lines.append(f"{name.removesuffix('_at')}@{k:<3} {share:7.1%}   95 % interval {low:.1%} – {high:.1%}")
    low, high = result["mean_reward_interval"]
    lines.append(f"reward  {result['mean_reward']:7.3f}   95 % interval {low:.3f} – {high:.3f}")
    return "\n".join(lines)


def _say(text: str) -> None:
    # To stderr: with --json, stdout holds one document and nothing else.
    if sys.stderr.isatty():
        print(text, end="", file=sys.stderr, flush=True)
