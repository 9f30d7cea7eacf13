"""Walks through the network of a long permutation, on whole arrays at once.

`paceline.runtime.data.compiled_walks` has the same for each point alone, several times as fast,
where numba is installed. Called by `paceline.runtime.data.permutation`.
"""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def mix_words(words: Words) -> Words:
    """The finaliser of splitmix64 on arrays; overflow wraps, as the hash wants."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(MULTIPLIERS[0])
    words = (words ^ (words >> np.uint64(27))) * np.uint64(MULTIPLIERS[1])
    return words ^ (words >> np.uint64(31))


def walk(points: IntArray, shape: tuple[np.uint64, ...], keys: Words, backwards: bool) -> IntArray:
    """Send each point through the network, again and again until it is inside.

    Args:
        points: one dimension.
        shape: length of the domain, bits of the low half, masks of the low and the high half.
        keys: one for each turn.
        backwards: the inverse.
    """
    words = points.astype(np.uint64)
    outside = np.arange(len(words))
    while len(outside):
        moved = _turned(words[outside], shape, keys, backwards=backwards)
        words[outside] = moved
        outside = outside[moved >= shape[0]]
    return words.astype(np.int64)


def _turned(words: Words, shape: tuple[np.uint64, ...], keys: Words, *, backwards: bool) -> Words:
    """Send each word once through the network."""
    _, low_bits, low_mask, high_mask = shape
    low, high = words & low_mask, words >> low_bits
    # Even turns change the low half by the high one, odd turns the high half by the low one; each
    # undoes itself, so the same turns backwards are the inverse.
    turns = range(len(keys) - 1, -1, -1) if backwards else range(len(keys))
    for turn in turns:
        if turn % 2 == 0:
            low ^= mix_words(high + keys[turn]) & low_mask
        else:
            high ^= mix_words(low + keys[turn]) & high_mask
    return low | (high << low_bits)
