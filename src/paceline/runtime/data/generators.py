"""Generators of random numbers that a DataLoader's samplers hold, and draw from in each pass."""

from typing import Any

from torch.utils.data import DataLoader

from paceline.runtime.variables.kinds import GENERATORS, Kind, kind_of


def of_samplers(loader: DataLoader[Any]) -> tuple[tuple[Any, Kind, Any], ...]:
    """Return the generators of a loader's samplers, but not its own: each, its kind, its state."""
    samplers = [loader.sampler, loader.batch_sampler]
    samplers += [getattr(one, "sampler", None) for one in samplers]
    held = (one for sampler in samplers for one in getattr(sampler, "__dict__", {}).values())
    found = dict[int, tuple[Any, Kind, Any]]()
    for one in held:
        kind = kind_of(one)
        if kind is not None and kind.name in GENERATORS and one is not loader.generator:
            found.setdefault(id(one), (one, kind, kind.taken(one)))
    return tuple(found.values())
