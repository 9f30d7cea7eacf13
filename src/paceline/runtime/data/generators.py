"""Generators of random numbers that a DataLoader's samplers hold, and draw from in each pass."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader


def of_samplers(loader: DataLoader[Any]) -> tuple[tuple[Any, Any], ...]:
    """Return the generators of a loader's samplers and their states; not the loader's own."""
    samplers = [loader.sampler, loader.batch_sampler]
    samplers += [getattr(one, "sampler", None) for one in samplers]
    seen = {id(None), id(loader.generator)}
    found = []
    for sampler in samplers:
        for one in _attributes_of(sampler):
            if id(one) not in seen and (state := _state_of(one)) is not None:
                seen.add(id(one))
                found.append((one, state))
    return tuple(found)


def _attributes_of(sampler: Any) -> Iterator[Any]:
    yield from getattr(sampler, "__dict__", {}).values()


def _state_of(value: Any) -> Any:
    match value:
        case torch.Generator():
            return value.get_state()
        case np.random.Generator():
            return value.bit_generator.state
        case np.random.RandomState():
            return value.get_state(legacy=False)
        case random.Random():
            return value.getstate()
        case _:
            return None


def put(generator: Any, state: Any) -> None:
    """Set a generator back to a state."""
    match generator:
        case np.random.Generator():
            generator.bit_generator.state = state
        case random.Random():
            generator.setstate(state)
        case _:
            generator.set_state(state)
