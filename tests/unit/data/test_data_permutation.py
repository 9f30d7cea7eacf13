"""The keyed permutation is a bijection, looks random, and never changes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.runtime.data import compiled_walks, walks
from paceline.runtime.data.permutation import MAX_LENGTH, Permutation, derive_key

LENGTHS = [1, 2, 3, 4, 5, 7, 8, 97, 1024, 65_535, 65_536, 65_537, 99_991, 1 << 17, 200_003]


@pytest.mark.parametrize("length", LENGTHS)
def test_every_point_is_hit_exactly_once(length: int) -> None:
    permutation = Permutation(key=length * 7 + 1, length=length)
    images = permutation.forward(np.arange(length))
    assert np.array_equal(np.sort(images), np.arange(length))
    assert np.array_equal(permutation.inverse(images), np.arange(length))


@settings(deadline=None)
@given(
    key=st.integers(0, 2**64 - 1),
    length=st.integers(1, 2**62),
    fractions=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_inverse_undoes_forward_in_domains_of_any_length(
    key: int, length: int, fractions: list[float]
) -> None:
    points = np.array([min(int(f * length), length - 1) for f in fractions])
    permutation = Permutation(key, length)
    images = permutation.forward(points)
    assert ((images >= 0) & (images < length)).all()
    assert np.array_equal(permutation.inverse(images), points)


def test_a_scalar_gives_the_same_image_as_an_array() -> None:
    permutation = Permutation(3, 1 << 40)
    assert int(permutation.forward(12_345)) == permutation.forward(np.array([1, 12_345]))[1]


def test_orders_of_four_are_equally_frequent_over_keys() -> None:
    orders = [tuple(Permutation(derive_key(5, k), 4).forward(np.arange(4))) for k in range(4800)]
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    chi_square = float(((counts - 200) ** 2 / 200).sum())
    assert chi_square < 49.7  # 23 degrees of freedom, p = 0.001


@pytest.mark.parametrize("length", [60_000, 70_000, 1 << 20, 10**15])
def test_images_of_neighbours_are_spread_evenly(length: int) -> None:
    images = Permutation(11, length).forward(np.arange(50_000))
    counts = np.bincount(images * 100 // length if length < 10**9 else images // (length // 100))
    chi_square = float(((counts - 500) ** 2 / 500).sum())
    assert chi_square < 148.2  # 99 degrees of freedom, p = 0.001; fewer when few points are left
    assert abs(np.corrcoef(images[:-1], images[1:])[0, 1]) < 0.02


def test_two_keys_give_unrelated_orders() -> None:
    points = np.arange(70_000)
    same = Permutation(1, 70_000).forward(points) == Permutation(2, 70_000).forward(points)
    assert same.sum() < 10


def test_the_order_is_frozen_so_that_a_saved_job_can_go_on() -> None:
    assert Permutation(42, 10).forward(np.arange(10)).tolist() == [4, 1, 6, 2, 8, 3, 9, 0, 7, 5]
    far = Permutation(42, 10**12).forward(np.arange(3))
    assert far.tolist() == [460_199_649_873, 973_860_216_179, 958_732_394_749]


@pytest.mark.parametrize("length", [0, -1, 2**62 + 1])
def test_a_length_out_of_range_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=str(length)):
        Permutation(0, length)


@pytest.mark.parametrize("length", [65_537, 1_000_003, 45_000_000, (1 << 40) + 1, MAX_LENGTH])
def test_without_a_compiler_the_images_are_the_same(length: int) -> None:
    found = Permutation(7, length)
    points = np.random.default_rng(0).integers(0, length, 500)
    shape = np.uint64(length), found._low_bits, *found._masks
    for backwards in (False, True):
        plain = walks.walk(points, shape, found._round_keys, backwards)
        compiled = compiled_walks.walk(points, shape, found._round_keys, backwards)
        assert plain.tolist() == compiled.tolist()
