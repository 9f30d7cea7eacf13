"""Seeds of everything random in a process: ``random``, numpy and torch."""

import random

import numpy as np
import torch

from paceline.runtime.data.permutation import derive_key


def seed_all(seed: int) -> None:
    """Seed all generators of this process, those of GPUs included."""
    seed_cpu(seed)
    torch.manual_seed(seed)


def seed_cpu(seed: int) -> None:
    """Seed the generators of this process but for those of GPUs; some microseconds.

    ``torch.manual_seed`` takes a hundred times as long, since it looks for accelerators.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)


def reseed(seed: int) -> None:
    """The same between two batches, where it must cost little; GPUs only where they are in use."""
    seed_cpu(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def seed_of(*numbers: int) -> int:
    """A seed of its own for these numbers; far from those for others."""
    return derive_key(*numbers) >> 1
