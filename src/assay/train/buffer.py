"""Between collecting and updating: every sample is accounted for exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from assay.types import Group


@dataclass(slots=True)
class Buffer:
    """Groups that wait for an update. Synchronous training drains it at every step."""

    asked: int = 0
    answered: int = 0
    trained: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    _groups: list[Group] = field(default_factory=list)

    def ask(self, samples: int) -> None:
        self.asked += samples

    def add(self, groups: Sequence[Group]) -> None:
        self.answered += sum(len(g.samples) for g in groups)
        self._groups.extend(groups)

    def drain(self) -> list[Group]:
        groups, self._groups = self._groups, []
        return groups

    def settle(self, trained: int, dropped: Counter[str]) -> None:
        """Record what became of drained samples. Raises RuntimeError unless every sample asked for is accounted for."""
        self.trained += trained
        self.dropped += dropped
        settled = self.trained + self.dropped.total()
        if not self.asked == self.answered == settled + sum(len(g.samples) for g in self._groups):
            raise RuntimeError(
                f"samples went missing: {self.asked} asked, {self.answered} answered, {self.trained} trained on, "
                f"{self.dropped.total()} dropped ({dict(self.dropped)}); this is a bug in assay"
            )
