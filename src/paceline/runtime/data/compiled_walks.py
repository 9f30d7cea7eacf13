"""Walks through the network of a long permutation, compiled: see `paceline.runtime.data.walks`."""

import numpy as np
from numba import njit

from paceline.runtime.data.walks import MULTIPLIERS, IntArray, Words


def walk(points: IntArray, shape: tuple[np.uint64, ...], keys: Words, backwards: bool) -> IntArray:
    """Compute what `paceline.runtime.data.walks.walk` does."""
    return np.asarray(_walk(points, shape, keys, backwards))


@njit(cache=True, nogil=True)
def _walk(points, shape, keys, backwards):  # type: ignore[no-untyped-def]
    """Send each point through the network, again and again until it is inside."""
    length, low_bits, low_mask, high_mask = shape
    images = np.empty(points.size, np.int64)
    for index in range(points.size):
        word = np.uint64(points[index])
        while True:
            low, high = word & low_mask, word >> low_bits
            # Even turns change the low half by the high one, odd turns the high half by the low
            # one; each undoes itself, so the same turns backwards are the inverse.
            for turn in range(keys.size):
                at = keys.size - 1 - turn if backwards else turn
                if at % 2 == 0:
                    low ^= _mix_word(high + keys[at]) & low_mask
                else:
                    high ^= _mix_word(low + keys[at]) & high_mask
            word = low | (high << low_bits)
            if word < length:
                break
        images[index] = np.int64(word)
    return images


@njit(inline="always")
def _mix_word(word):  # type: ignore[no-untyped-def]
    """Compute `mix_words` on a machine word."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(MULTIPLIERS[0])
    word = (word ^ (word >> np.uint64(27))) * np.uint64(MULTIPLIERS[1])
    return word ^ (word >> np.uint64(31))
