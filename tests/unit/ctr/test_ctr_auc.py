"""The AUC of the examples and the generator's, against a count of all pairs."""

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.features.data.ctr import auc_from_counts

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def ctr() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ctr", EXAMPLES / "ctr.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def all_pairs(score: list[int], label: list[int]) -> float:
    positives = [s for s, y in zip(score, label, strict=True) if y == 1]
    negatives = [s for s, y in zip(score, label, strict=True) if y == 0]
    won = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    return won / (len(positives) * len(negatives))


rows_of_both_classes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=2).filter(
    lambda rows: len({label for _, label in rows}) == 2
)


@settings(deadline=None, max_examples=60)
@given(rows=rows_of_both_classes)
def test_auc_counts_every_pair_of_classes_and_ties_as_half(
    ctr: ModuleType, rows: list[tuple[int, int]]
) -> None:
    score, label = [row[0] for row in rows], [row[1] for row in rows]
    found = ctr.auc(torch.tensor(score, dtype=torch.float32), torch.tensor(label))
    assert found == pytest.approx(all_pairs(score, label), abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(rows=rows_of_both_classes)
def test_auc_from_counts_agrees_with_all_pairs(rows: list[tuple[int, int]]) -> None:
    score, label = [row[0] for row in rows], [row[1] for row in rows]
    positives = np.bincount([s for s, y in rows if y == 1], minlength=6)
    negatives = np.bincount([s for s, y in rows if y == 0], minlength=6)
    assert auc_from_counts(positives, negatives) == pytest.approx(all_pairs(score, label))


def test_auc_of_one_class_is_not_a_number(ctr: ModuleType) -> None:
    assert math.isnan(ctr.auc(torch.tensor([0.1, 0.2]), torch.tensor([1.0, 1.0])))
    assert auc_from_counts(np.array([1, 2]), np.array([0, 0])) is None
