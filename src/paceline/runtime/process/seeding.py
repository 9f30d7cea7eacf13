"""Seeds of everything random in a process: ``random``, numpy and torch."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.random import mtrand

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
    """Seed again between two batches, at little cost: GPUs only where they are in use."""
    seed_cpu(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def all_kept() -> Callable[[], None]:
    """Keep the states of all generators, those of GPUs included; what is returned puts them back.

    `kept` does so for some microseconds, within which nothing else draws.
    """
    python, numpy, own = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(own)
        if devices:
            torch.cuda.set_rng_state_all(devices)

    return restore


def draws() -> dict[str, Any]:
    """The states of the generators on the processor, as data and tensors; see `put_draws`."""
    version, numbers, gauss = random.getstate()
    kind, keys, *others = np.random.get_state()
    return {
        "random": (version, numbers, gauss),
        "numpy": (kind, keys, *others),
        "torch": torch.default_generator.get_state(),
    }


def put_draws(states: Mapping[str, Any]) -> None:
    """Have the generators on the processor go on from these states."""
    version, numbers, gauss = states["random"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *others = states["numpy"]
    np.random.set_state((kind, np.asarray(keys, np.uint32), *others))
    torch.default_generator.set_state(states["torch"])


def seed_of(*numbers: int) -> int:
    """A seed of its own for these numbers; far from those for others."""
    return derive_key(*numbers) >> 1


_SPARE = np.random.MT19937(0)


def kept(spare: np.random.MT19937 = _SPARE) -> Callable[[], None]:
    """Keep the states of the process's generators; what is returned puts them back.

    Args:
        spare: takes the place of numpy's; another one for what is kept within what is kept.
    """
    python, own = random.getstate(), torch.default_generator.get_state()
    # To copy the state of numpy's takes ten times as long as all else. Of a pair of normal numbers
    # that it has made, the second one is lost that way.
    numpy = mtrand.get_bit_generator()
    mtrand.set_bit_generator(spare)

    def restore() -> None:
        random.setstate(python)
        mtrand.set_bit_generator(numpy)
        torch.default_generator.set_state(own)

    return restore
