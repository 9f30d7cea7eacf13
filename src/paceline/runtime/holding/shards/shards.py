"""Shard that one member holds: of models and optimizers, as arrays for a cut, and back.

Torch divides a tensor along its first axis as ``torch.chunk`` does; a cut has one file for each
member, with its rows. A member of a group of another size reads the rows that it needs from the
files of several.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.base.copying import copy
from paceline.base.errors import ConfigError, PermanentError
from paceline.cuts.manifest import look_at, map_file, read_manifest
from paceline.protocol.holding.group.position import Position
from paceline.runtime.checkpoint.cutfile import unpack
from paceline.runtime.data.work import Array
from paceline.runtime.state.outside import Outside
from paceline.runtime.state.replica import Replica, decode_layout, encode_layout
from paceline.runtime.state.script_state import ScriptState
from paceline.runtime.state.skeleton import (
    LAYOUT,
    Layout,
    names_of,
    put_together,
    rows_of_part,
)
from paceline.runtime.state.tree import take_apart


class Shards(Replica):
    """The prepared objects of one member.

    Args:
        modules: at least one parameter of theirs is sharded; see `check_sharded`.
        optimizers: of their parameters.
        schedulers: of the optimizers.
        part: which member this is, and of how many.
        outside: see `Replica`.
        script: see `Replica`.
        position: see `Replica`.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
        *,
        part: tuple[int, int],
        outside: Outside | None = None,
        script: ScriptState | None = None,
        position: Position | None = None,
    ) -> None:
        super().__init__(modules, optimizers, schedulers, outside, script=script, position=position)
        self._part = part
        parts = (one for root in modules for one in root.modules())
        self._sharded = [one for one in parts if isinstance(one, FSDPModule)]
        params = (one for module in modules for one in module.parameters())
        self._mesh = next(one.device_mesh for one in params if isinstance(one, DTensor))

    def reshard(self) -> None:
        """Give up parameters that a forward pass has gathered."""
        for module in self._sharded:
            module.reshard()

    def save(self) -> dict[str, Array]:
        """Save the state; of what is sharded only our own rows."""
        skeleton, tensors = take_apart(self._state_for_cut())
        rows = tuple(one.shape[0] if isinstance(one, DTensor) else None for one in tensors)
        local = [one.to_local() if isinstance(one, DTensor) else one for one in tensors]
        layout = encode_layout(skeleton, local, part=self._part, rows=rows)
        return self._named(layout, names_of(skeleton), local)

    def load_cut(self, *places: Path) -> None:
        """Become our part of what a cut holds, whatever the number of members that have made it.

        Raises:
            PermanentError: it is damaged.
        """
        files = _files_of(*places)
        # What is not sharded each member has of its own, as running statistics.
        own = files[self._part[0] % len(files)]
        form = _layout_of(own.arrays())
        tensors = [
            self._read(files, own, name, dtype, shape, rows)
            for name, (dtype, shape), rows in zip(
                names_of(form.skeleton), form.tensors, form.rows, strict=True
            )
        ]
        self._become(put_together(form.skeleton, tensors))

    def _read(
        self,
        files: "Sequence[_File]",
        own: "_File",
        name: str,
        dtype: str,
        shape: Sequence[int],
        rows: int | None,
    ) -> Tensor:
        kind: torch.dtype = getattr(torch, dtype)
        if rows is None:
            whole = torch.empty(tuple(shape), dtype=kind)
            _fill(whole, own.arrays()[name])
            return whole
        ours, count = rows_of_part(rows, self._part), len(files)
        local = torch.empty((len(ours), *shape[1:]), dtype=kind)
        for file in files:
            theirs = rows_of_part(rows, (file.layout.part[0], count))
            low, high = max(ours.start, theirs.start), min(ours.stop, theirs.stop)
            if low < high:
                part = file.arrays()[name][low - theirs.start : high - theirs.start]
                _fill(local[low - ours.start : high - ours.start], part)
        size = torch.Size((rows, *shape[1:]))
        stride = torch.empty(size, device="meta").stride()
        return DTensor.from_local(
            local, self._mesh, (Shard(0),), run_check=False, shape=size, stride=stride
        )


def check_sharded(modules: Sequence[nn.Module], params: Sequence[nn.Parameter], size: int) -> None:
    """Check that all can be trained and kept: shards of the first axis over all workers.

    Args:
        modules: that were given to ``job.prepare``.
        params: those of them that are trained.
        size: number of workers.

    Raises:
        ConfigError: something else is there.
    """
    names = {id(one): name for module in modules for name, one in module.named_parameters()}
    for param in params:
        name = names.get(id(param), f"of shape {tuple(param.shape)}")
        if not isinstance(param, DTensor):
            raise ConfigError(
                f"job.prepare: parameter {name} is not sharded, so its gradient would be this "
                "worker's alone; call fully_shard(model), and make the optimizer after it"
            )
        if param.device.type != "cpu":
            raise ConfigError(
                f"job.prepare: parameter {name} is on {param.device}; strategy fsdp "
                "trains on the CPU only, strategy allreduce on GPUs, too"
            )
    for module in modules:
        for name, one in module.state_dict().items():
            if not isinstance(one, DTensor):
                continue
            if one.device_mesh.shape != (size,) or one.placements != (Shard(0),):
                raise ConfigError(
                    f"job.prepare: {name} is placed as {one.placements} on a mesh of "
                    f"{tuple(one.device_mesh.shape)}; expected (Shard(dim=0),) on ({size},): call "
                    "fully_shard without mesh and shard_placement_fn"
                )


class _File(NamedTuple):
    """One member's file of a cut."""

    layout: Layout
    """Form of the state in the file, not verified."""
    arrays: Callable[[], dict[str, Array]]
    """Function that reads the arrays and verifies them; raises PermanentError."""


def _files_of(*places: Path) -> list[_File]:
    """Return all files of a cut, by the number of the member; what is read is verified before."""
    manifest = read_manifest(*places)
    found = [_file(name, checksum, *places) for name, checksum in manifest.files.items()]
    found.sort(key=lambda file: file.layout.part)
    if [file.layout.part for file in found] != [(k, len(found)) for k in range(len(found))]:
        raise PermanentError(f"{places[0]}: its files are not all shards of one state")
    return found


def _file(name: str, checksum: str, *places: Path) -> _File:
    layout = look_at(name, lambda image: _layout_of(unpack(image)), *places)
    known: list[dict[str, Array]] = []

    def arrays() -> dict[str, Array]:
        if not known:
            known.append(unpack(map_file(name, checksum, *places)))
        return known[0]

    return _File(layout, arrays)


def _layout_of(saved: Mapping[str, Array]) -> Layout:
    return decode_layout(saved[LAYOUT].tobytes() if LAYOUT in saved else b"")


def _fill(target: Tensor, source: Array) -> None:
    """Copy bytes; both are contiguous."""
    if target.numel():
        copy(
            target.reshape(-1).view(torch.uint8).numpy(),
            np.ascontiguousarray(source).reshape(-1).view(np.uint8),
        )
