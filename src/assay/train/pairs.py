"""Preference pairs from a run's own completions: of one prompt, a better one and a worse one by their rewards."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from assay.core.zero_variance import is_zero_variance
from assay.errors import ConfigError
from assay.telemetry.store import RunFolder, write_atomic

Record = Mapping[str, Any]
"""A completion as ``RunFolder.read_rollouts`` gives it."""

ROUNDING = 1e-9
"""Rewards such as 0.7 and 0.4 differ by a little less than 0.3, and are meant to pass a margin of 0.3."""

UNGRADED = "fewer than two completions with a reward"
CUT_OFF = "fewer than two of these finished within the token limit"
ALIKE = "all texts the same"
TOO_CLOSE = "no two rewards so far apart"
REPEATED = "its pairs are those of an earlier group"


@dataclass(frozen=True, slots=True)
class RewardPair:
    """Two completions of one prompt; texts are without end tokens."""

    prompt: str | Sequence[Mapping[str, str]]
    answer: Any
    chosen: str
    rejected: str
    chosen_reward: float
    rejected_reward: float

    def to_json(self) -> str:
        """A preference row as one line."""
        row = {
            "prompt": self.prompt,
            "chosen": self.chosen,
            "rejected": self.rejected,
            "answer": self.answer,
            "rewards": {"chosen": self.chosen_reward, "rejected": self.rejected_reward},
        }
        return json.dumps(row, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True, slots=True)
class Selection:
    """The pairs of a run, and why groups gave none."""

    pairs: tuple[RewardPair, ...]
    groups: int
    without: Mapping[str, int]
    """Groups without a pair, by reason."""


def pairs_of_run(
    folder: RunFolder, *, first: int | None = None, last: int | None = None, margin: float = 0.0, per_group: int = 1
) -> Selection:
    """The pairs of the run's steps from ``first`` to ``last``. Raises ConfigError if no such step has completions."""
    known = folder.rollout_steps()
    if not known:
        raise ConfigError(f"{folder.path} has no completions to make pairs of; only runs of `assay train` keep them")
    steps = [step for step in known if (first is None or step >= first) and (last is None or step <= last)]
    if not steps:
        raise ConfigError(f"{folder.path} has completions of steps {known[0]} to {known[-1]}, and none of those asked")
    groups = (group for step in steps for group in _groups(folder.read_rollouts(step)))
    return select_pairs(groups, margin=margin, per_group=per_group)


def select_pairs(groups: Iterable[Sequence[Record]], *, margin: float = 0.0, per_group: int = 1) -> Selection:
    """The pairs of all groups, each pair once, in the order of the groups."""
    pairs: dict[str, RewardPair] = {}
    without: Counter[str] = Counter()
    count = 0
    for group in groups:
        count += 1
        found, reason = pairs_of_group(group, margin=margin, per_group=per_group)
        before = len(pairs)
        for pair in found:
            pairs.setdefault(json.dumps([pair.prompt, pair.chosen, pair.rejected]), pair)
        if len(pairs) == before:
            without[reason or REPEATED] += 1
    return Selection(tuple(pairs.values()), count, dict(without.most_common()))


def pairs_of_group(
    group: Sequence[Record], *, margin: float = 0.0, per_group: int = 1
) -> tuple[list[RewardPair], str | None]:
    """The pairs of one group's completions with the largest gaps in reward, or none and the reason.

    Left out are completions without a reward, those cut off at the token limit (their text has no end to learn),
    and repeated texts (the first counts). A gap is at least ``margin``, and more than is_zero_variance calls
    nothing. Of equal gaps, those of better chosen and worse rejected ones by rank come first; equal rewards rank
    by sample id.
    """
    graded = [c for c in group if not math.isnan(c["reward"])]
    finished = sorted((c for c in graded if c["finish_reason"] != "length"), key=lambda c: c["sample_id"])
    first_of_each = {c["completion"]: c for c in reversed(finished)}
    ranked = sorted(first_of_each.values(), key=lambda c: (-c["reward"], c["sample_id"]))
    for kept, reason in ((graded, UNGRADED), (finished, CUT_OFF), (ranked, ALIKE)):
        if len(kept) < 2:
            return [], reason
    pairs = [pair for pair in _widest(ranked, per_group) if _is_apart(pair, margin)]
    return pairs, None if pairs else TOO_CLOSE


def write_pairs(path: Path, pairs: Sequence[RewardPair]) -> None:
    """One line a pair; the whole file or none. Raises ConfigError if it cannot be written."""
    # JSON's own escape for what UTF-8 cannot hold.
    content = "".join(f"{pair.to_json()}\n" for pair in pairs).encode("utf-8", "backslashreplace")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}; choose another --out") from error


def _groups(records: Sequence[Record]) -> Iterator[list[Record]]:
    groups: dict[int, list[Record]] = {}
    for record in records:
        groups.setdefault(record["group_id"], []).append(record)
    yield from groups.values()


def _widest(ranked: Sequence[Record], count: int) -> list[RewardPair]:
    """The ``count`` pairs with the largest gaps; ``ranked`` is from the best to the worst."""
    last = len(ranked) - 1
    # No other pair can be among them: each is behind `count` pairs of a better chosen or a worse rejected one.
    places = [(i, j) for i in range(last + 1)[:count] for j in range(last + 1)[-count:] if i < j]
    places.sort(key=lambda p: (ranked[p[1]]["reward"] - ranked[p[0]]["reward"], p[0] + last - p[1], p[0]))
    return [_pair(ranked[i], ranked[j]) for i, j in places[:count]]


def _is_apart(pair: RewardPair, margin: float) -> bool:
    rewards_PG = torch.tensor([[pair.chosen_reward, pair.rejected_reward]], dtype=torch.float64)
    gap = pair.chosen_reward - pair.rejected_reward
    return gap >= margin - ROUNDING and not bool(is_zero_variance(rewards_PG))


def _pair(better: Record, worse: Record) -> RewardPair:
    return RewardPair(
        better["prompt"],
        better["answer"],
        better["completion"],
        worse["completion"],
        better["reward"],
        worse["reward"],
    )
