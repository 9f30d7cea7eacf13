"""Seeds of everything random in a process: ``random``, numpy and torch."""

import random

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Begin all random numbers of this process anew."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_of(*numbers: int) -> int:
    """A seed of its own for these numbers, each 0 or above; far from those for others."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1
