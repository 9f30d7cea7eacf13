"""The rule of equality itself: a case can fail also where torch gives NaN."""

import pytest
import torch

from tests.parity.rule import distance

INF, NAN = torch.inf, torch.nan


@pytest.mark.parametrize(
    ("ours", "theirs", "apart"),
    [
        ([NAN, 1.0], [NAN, 1.0], 0.0),
        ([INF, 1.0], [INF, 1.0], 0.0),
        ([NAN, 1.5], [NAN, 1.0], 0.5),
        ([NAN, 1.0], [1.0, 1.0], INF),
        ([1.0, 1.0], [NAN, 1.0], INF),
    ],
)
def test_nan_is_equal_to_nan_and_to_nothing_else(
    ours: list[float], theirs: list[float], apart: float
) -> None:
    assert distance({"w": torch.tensor(ours)}, {"w": torch.tensor(theirs)}) == apart
