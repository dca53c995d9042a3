"""The peers' reference vectors of tests/oracle, as a fixture."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oracle.cases import OracleCase, load


@pytest.fixture
def oracle_cases() -> Callable[..., list[OracleCase]]:
    """``oracle_cases(family, **want)``: the cases whose fields (id, peer, function) or settings equal ``want``."""
    return load
