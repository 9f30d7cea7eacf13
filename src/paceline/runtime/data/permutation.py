"""Keyed permutations of ``[0, n)`` that are computed instead of stored.

The shuffled order of a dataset must be the same in every process and after every restart, and
must cost no memory for 10^12 records. So nothing here depends on a library's random stream, only
on 64-bit integer arithmetic. Called by ``order``; imports no torch.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt

from paceline.runtime.data.walks import MULTIPLIERS, IntArray, Words, mix_words

try:
    from paceline.runtime.data.compiled_walks import walk
except ModuleNotFoundError:  # numba is of the extra `servers`; the images are the same
    from paceline.runtime.data.walks import walk

MAX_LENGTH = 1 << 62
_TABLE_LENGTH = 1 << 16
_NUM_ROUNDS = 8
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def derive_key(*parts: int) -> int:
    """A 64-bit key from any integers; each part and its place matter."""
    key = 0
    for part in parts:
        key = _mix((key + _GOLDEN + (part & _MASK)) & _MASK)
    return key


class Permutation:
    """A pseudo-random bijection of ``[0, length)``, a pure function of ``(key, length)``.

    Short domains (up to 65,536, at most 1 MB of tables, made on first use) are sorted by a keyed
    hash, which is as uniform as the hash. Longer ones use a Feistel network over the next power
    of two and walk the cycle until they are back inside: at most two evaluations on average.

    Raises:
        ValueError: ``length`` is not in [1, 2^62].
    """

    def __init__(self, key: int, length: int) -> None:
        if not 1 <= length <= MAX_LENGTH:
            raise ValueError(f"a permutation needs a length in [1, 2^62], got {length}")
        self.key = key & _MASK
        self.length = length
        num_bits = max((length - 1).bit_length(), 2)
        self._low_bits = np.uint64(num_bits // 2)
        self._masks = (
            np.uint64((1 << (num_bits // 2)) - 1),
            np.uint64((1 << (num_bits - num_bits // 2)) - 1),
        )

    def forward(self, points: npt.ArrayLike) -> IntArray:
        """The images of ``points``, each in ``[0, length)``; any shape, not checked."""
        at = np.asarray(points, np.int64)
        return self._table[at] if self.length <= _TABLE_LENGTH else self._walk(at, backwards=False)

    def inverse(self, images: npt.ArrayLike) -> IntArray:
        """The points whose images are ``images``."""
        at = np.asarray(images, np.int64)
        if self.length <= _TABLE_LENGTH:
            return self._inverse_table[at]
        return self._walk(at, backwards=True)

    @cached_property
    def _table(self) -> IntArray:
        # _mix_words is a bijection of 64-bit words: no two points of one key tie.
        counter = np.arange(1, self.length + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        return np.argsort(mix_words(counter + np.uint64(self.key))).astype(np.int64)

    @cached_property
    def _inverse_table(self) -> IntArray:
        table = np.empty_like(self._table)
        table[self._table] = np.arange(self.length)
        return table

    @cached_property
    def _round_keys(self) -> Words:
        return np.array([derive_key(self.key, turn) for turn in range(_NUM_ROUNDS)], np.uint64)

    def _walk(self, points: IntArray, *, backwards: bool) -> IntArray:
        shape = np.uint64(self.length), self._low_bits, *self._masks
        images: IntArray = walk(points.ravel(), shape, self._round_keys, backwards)
        return images.reshape(points.shape)


def _mix(word: int) -> int:
    """The finaliser of splitmix64 (Steele et al. 2014) on a Python integer."""
    word = ((word ^ (word >> 30)) * MULTIPLIERS[0]) & _MASK
    word = ((word ^ (word >> 27)) * MULTIPLIERS[1]) & _MASK
    return word ^ (word >> 31)
