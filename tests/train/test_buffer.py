"""Every sample that was asked for is trained on or dropped, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from assay.train.buffer import Buffer
from assay.types import Group, Sample


@pytest.fixture
def group(sample: Callable[..., Sample]) -> Group:
    return Group(7, tuple(sample(i, 7, float(i)) for i in range(4)), (0.0,) * 4, "informative")


def test_counts_over_two_steps(group: Group) -> None:
    buffer = Buffer()
    for _ in range(2):
        buffer.ask(8)
        buffer.add([group, group])
        assert buffer.drain() == [group, group]
        assert buffer.drain() == []
        buffer.settle(5, Counter(zero_variance=2, unscorable=1))
    assert (buffer.asked, buffer.answered, buffer.trained) == (16, 16, 10)
    assert buffer.dropped == {"zero_variance": 4, "unscorable": 2}


def test_groups_that_still_wait_are_accounted_for(group: Group) -> None:
    buffer = Buffer()
    buffer.ask(8)
    buffer.add([group])
    buffer.drain()
    buffer.add([group])
    buffer.settle(4, Counter())


@pytest.mark.parametrize(
    ("asked", "answered", "trained", "dropped"), [(5, 4, 4, 0), (4, 4, 3, 0), (4, 4, 4, 1), (3, 4, 4, 0), (4, 0, 0, 4)]
)
def test_a_sample_too_many_or_too_few_is_an_error(
    asked: int, answered: int, trained: int, dropped: int, group: Group
) -> None:
    buffer = Buffer()
    buffer.ask(asked)
    if answered:
        buffer.add([group])
    buffer.drain()
    with pytest.raises(RuntimeError, match=f"{asked} asked, {answered} answered, {trained} trained on, {dropped} drop"):
        buffer.settle(trained, Counter(zero_variance=dropped))
