"""What the loop refuses to go on from."""

from __future__ import annotations

import pytest

from assay.errors import EngineError
from assay.models.learner import UpdateStats
from assay.train.loop import refuse_mismatch
from assay.train.update import UpdateResult


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_learner_that_disagrees_with_the_sampler_is_an_error(dtype: str) -> None:
    def result(gap: float) -> UpdateResult:
        return UpdateResult(UpdateStats(tokens=4, sampler_gap_sum=4 * gap, sampler_gap_max=gap), 1.0, 1.0, 0)

    tolerance = {"float32": 1e-3, "bfloat16": 0.1}[dtype]
    refuse_mismatch(result(tolerance), dtype)
    for gap in (tolerance * 1.01, float("nan")):
        with pytest.raises(EngineError, match="sampler and learner disagree on the sampled tokens"):
            refuse_mismatch(result(gap), dtype)
