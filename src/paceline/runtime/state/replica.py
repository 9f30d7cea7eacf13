"""State that a member holds: models, optimizers, schedulers, scalers, as bytes for a peer.

The state travels in parts: part 0 says what it is made of, the others are the tensors' bytes one
after the other, `PART_BYTES` at a time.
"""

import hashlib
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.base.errors import PermanentError
from paceline.cuts.manifest import look_at, read_manifest
from paceline.protocol.holding.group.position import Position
from paceline.runtime.checkpoint.cutfile import read_file, unpack
from paceline.runtime.data.work import Array
from paceline.runtime.process.process import Fenced
from paceline.runtime.state.begun import plain, prepared, tell_differences
from paceline.runtime.state.outside import START, Outside
from paceline.runtime.state.restoring import (
    fits,
    restore_module,
    restore_optimizer,
    restore_unsaved,
    unsaved_buffers,
)
from paceline.runtime.state.script_state import ScriptState
from paceline.runtime.state.skeleton import (
    LAYOUT,
    Layout,
    Skeleton,
    names_of,
    put_together,
    read_layout,
)
from paceline.runtime.state.tree import as_array, as_bytes, take_apart
from paceline.runtime.variables.variables import Variables
from paceline.wire.messages.feeds import ScriptPlace

PART_BYTES = 16 << 20


def encode_layout(
    skeleton: Skeleton,
    tensors: Sequence[Tensor],
    *,
    part: tuple[int, int] = (0, 1),
    rows: tuple[int | None, ...] = (),
) -> bytes:
    """Encode what the state is made of: part 0; for a shard see `Layout`."""
    kinds = tuple((str(one.dtype).removeprefix("torch."), tuple(one.shape)) for one in tensors)
    return msgspec.json.encode(Layout(skeleton, kinds, part, rows))


def decode_layout(data: bytes) -> Layout:
    """Decode a layout again.

    Raises:
        PermanentError: it is none.
    """
    layout = read_layout(data)
    for dtype, _ in layout.tensors:
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise PermanentError(f"a state cannot be read: {dtype!r} is no dtype of torch")
    return layout


def place_in_cut(training: int, *places: Path) -> tuple[ScriptPlace, Sequence[int]] | None:
    """Return where the script was in a training whose state a cut holds; None: it holds none of it.

    Returns:
        The place, and the steps of schedulers between loops.

    Raises:
        PermanentError: it is missing or damaged, or is no state.
    """
    name = next(iter(read_manifest(*places).files))
    state = _form_of(_layout_at(name, places))
    over = _over(state)
    if len(over) < training:
        return None
    state = [*over, state][training]
    return tuple(state.get("place", START)), state["outside"]


def entry_in_cut(training: int, *places: Path) -> tuple[ScriptPlace, str, int] | None:
    """Return where the script was in its loops when a cut was made; None: the cut does not know it.

    Returns:
        The place of its loop, the lines from which it was opened, and the number of the pass over
        its loader.

    Raises:
        PermanentError: the cut is missing or damaged, or is no state.
    """
    name = next(iter(read_manifest(*places).files))
    state = _form_of(_layout_at(name, places))
    found = state.get("variables")
    if found is None or len(_over(state)) != training:
        return None
    return tuple(found["place"]), found["opened"], found.get("turn", 0)


def _layout_at(name: str, places: Sequence[Path]) -> Layout:
    """The layout in a file of a cut, which is not verified."""
    return look_at(name, lambda image: decode_layout(unpack(image)[LAYOUT].tobytes()), *places)


def _form_of(layout: Layout) -> Any:
    """The state of this form, with numbers in place of tensors."""
    return put_together(layout.skeleton, range(len(layout.tensors)))


def _over(state: Mapping[str, Any]) -> list[Any]:
    """The trainings of a state that are over, as they ended."""
    return list(state.get("over", ()))


class Replica:
    """The prepared objects of one member: those of its newest training.

    Of each training before, it holds the state that the last loop over batches ended with (in
    ``over``), for scripts that come there later: docs/decisions/0040-trainings-in-turn.md.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
        outside: Outside | None = None,
        scalers: Sequence[GradScaler] = (),
        script: ScriptState | None = None,
        position: Position | None = None,
    ) -> None:
        self._script = script
        self._position = position or Position()
        self.is_whole = True
        """Whether all that was loaded last is held; see `load_what_fits`."""
        self.is_behind = False
        """Whether what was loaded last is of a later training than this one."""
        self.over: list[Any] = []
        """The trainings before, as they ended."""
        self.variables: Variables | None = None
        """The script's own variables, where they are part of the state."""
        #: What the last loop ended with; memory is shared.
        self._ended: tuple[Skeleton, list[Tensor]] | None = None
        #: What a loop that is passed over has ended with, or the training in hand; see `end_again`.
        self._found: tuple[Skeleton, list[Tensor]] | None = None
        self._hold(modules, optimizers, schedulers, scalers, outside)

    def _hold(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
        scalers: Sequence[GradScaler],
        outside: Outside | None,
    ) -> None:
        self.modules, self.optimizers, self.schedulers = modules, optimizers, schedulers
        self.scalers = scalers
        self._outside = outside or Outside(schedulers, lambda _: 1)
        #: What the script had prepared at the training's beginning.
        self._begun = plain(prepared(optimizers, schedulers))
        take_apart(self._state())  # what cannot be handed over is refused before any work

    def enter_loop(self) -> None:
        """The script trains, or is about to."""
        self._ended = None

    def leave_loop(self) -> None:
        """The script has left a loop over batches, perhaps the last one of its training.

        What is no tensor is kept as it is now, whatever the script does before the next training.
        """
        self._ended = take_apart(self._with_variables(self._of_training(), ended=True))

    def next_training(
        self,
        modules: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[LRScheduler],
        scalers: Sequence[GradScaler],
        outside: Outside,
    ) -> None:
        """Hold these; the state of the training before becomes one of those that are over."""
        skeleton, tensors = self._ended or take_apart(self._of_training())
        kept = [one.detach().cpu().clone() for one in tensors]
        self.over.append(put_together(skeleton, kept))
        self._ended = self._found = None
        self._position.next_training()
        self._hold(modules, optimizers, schedulers, scalers, outside)

    def _state(self, training: dict[str, Any] | None = None) -> dict[str, Any]:
        return (training or self._of_training()) | ({"over": self.over} if self.over else {})

    def _state_for_cut(self) -> dict[str, Any]:
        """The state; after a loop, what that ended with: a later life does again what follows.

        Not if the script has come to its next epoch: a later life begins with that one.
        """
        ended = put_together(*self._ended) if self._ended is not None else None
        if ended is None or self._outside.is_in_epoch_after(ended["place"]):
            return self._state(self._with_variables(self._of_training()))
        left = (ended.get("variables") or {}).get("left")
        if left and self.variables is not None and self.variables.leaves_by_stop():
            # Its own handler of the signal has left the loop, by a variable that would do so again.
            del ended["variables"]
        return self._state(ended)

    def _with_variables(
        self, training: dict[str, Any], *, ended: bool = False, ready: bool = False
    ) -> dict[str, Any]:
        """The state with the script's variables as they are now, or as they are ``ready``."""
        if self.variables is None:
            return training
        found = self.variables.ready if ready else self.variables.state_of(ended=ended)
        return training if found is None else training | {"variables": found}

    def _of_training(self) -> dict[str, Any]:
        return {
            "modules": [module.state_dict() for module in self.modules],
            "unsaved": [unsaved_buffers(module) for module in self.modules],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "scalers": [scaler.state_dict() for scaler in self.scalers],
            "outside": self._outside.counts(),
            "place": self._outside.place,
            "position": self._position.value,
            "began": self._position.began,
            "samples": self._position.samples,
            "begun": self._begun,
            "script": self._script.state_of() if self._script is not None else {},
        }

    def describe(self) -> str:
        """A short text, the same for members that can train together."""
        modules = [
            [(name, *_kind(one)) for name, one in module.state_dict().items()]
            for module in self.modules
        ]
        kinds = [type(one).__name__ for one in (*self.optimizers, *self.schedulers, *self.scalers)]
        params = [param for module in self.modules for param in module.parameters()]
        size = sum(param.numel() for param in params)
        devices = sorted({param.device.type for param in params} - {"cpu"})
        where = f" on {' and '.join(devices)}" if devices else ""
        digest = hashlib.sha256(repr((modules, kinds)).encode()).hexdigest()[:8]
        return f"{size:,} parameters{where}, {', '.join(kinds) or 'no optimizer'}, {digest}"

    def photograph(self) -> "Photograph":
        """The state as it is; shares memory with it."""
        training = self._with_variables(self._of_training(), ready=True)
        return Photograph(*take_apart(self._state(training)))

    def save(self) -> dict[str, Array]:
        """The state as arrays by name, for a cut; see `load_saved`.

        They share memory with it, but for what a forward pass changes (buffers), which is copied:
        the rest stays as it is until the next update. Of what is on another device they are copies.
        """
        skeleton, tensors = take_apart(self._state_for_cut())
        return self._named(encode_layout(skeleton, tensors), names_of(skeleton), tensors)

    def _named(
        self, layout: bytes, names: Sequence[str], tensors: Sequence[Tensor]
    ) -> dict[str, Array]:
        fleeting = {one.data_ptr() for module in self.modules for one in module.buffers()}
        saved: dict[str, Array] = {LAYOUT: np.frombuffer(layout, np.uint8)}
        for name, tensor in zip(names, tensors, strict=True):
            is_shared = tensor.is_cpu and tensor.data_ptr() in fleeting
            kept = tensor.clone() if is_shared else tensor
            saved[name] = as_array(kept)
        return saved

    def load_cut(self, *places: Path) -> None:
        """Become what the one file of a cut holds.

        It is read into our own tensors, and verified on the way: after an error they hold neither
        state, and only a cut that is loaded as a whole makes them one again.

        Raises:
            PermanentError: it is missing or damaged, or is no state.
        """
        self._load_cut(places, whole=True)

    def load_what_fits(self, *places: Path) -> None:
        """Load a cut, but leave an optimizer as it is whose groups the script will still add.

        Raises:
            PermanentError: see `load_cut`.
        """
        self._load_cut(places, whole=False)

    def _load_cut(self, places: Sequence[Path], *, whole: bool) -> None:
        ((name, expected),) = read_manifest(*places).files.items()
        # What has the same names in a cut of the training before is not ours.
        ours = not self.over or self._may_write(_layout_at(name, places))
        into = self._arrays() if ours else {}
        self.load_saved(read_file(name, expected, *places, into=into), whole=whole)

    def _may_write(self, layout: Layout) -> bool:
        """Tell whether a state of this form should take the place of what we hold."""
        return len(_over(_form_of(layout))) >= len(self.over)

    def _arrays(self) -> dict[str, Array]:
        """Our tensors by their names in a cut, as far as they can be written to where they are."""
        skeleton, tensors = take_apart(self._state())
        named = zip(names_of(skeleton), tensors, strict=True)
        return {name: as_array(tensor) for name, tensor in named if _is_plain(tensor)}

    def load_saved(self, saved: Mapping[str, Array], *, whole: bool = True) -> None:
        """Become what a cut holds; its arrays become ours.

        ``whole``: all of it, see `load_what_fits`.

        Raises:
            PermanentError: it is no state.
        """
        layout = decode_layout(saved[LAYOUT].tobytes() if LAYOUT in saved else b"")
        tensors = [
            torch.from_numpy(saved[name]).view(getattr(torch, dtype)).reshape(shape)
            for name, (dtype, shape) in zip(names_of(layout.skeleton), layout.tensors, strict=True)
        ]
        self._become(put_together(layout.skeleton, tensors), whole=whole)

    def load(self, arrived: "Arriving") -> None:
        """Become what arrived."""
        self._become(arrived.state())

    def targets(self, layout: Layout, *, in_place: bool) -> list[Tensor]:
        """Return where the tensors of a state of this form must be written.

        ``in_place``: into those that we hold, where they fit; what we hold is lost then.
        """
        skeleton, tensors = take_apart(self._state())
        in_place = in_place and self._may_write(layout)
        ours = dict(zip(names_of(skeleton), tensors, strict=True)) if in_place else {}
        found = []
        for name, (dtype, shape) in zip(names_of(layout.skeleton), layout.tensors, strict=True):
            own = ours.get(name)
            fits = own is not None and _is_plain(own) and own.dtype == getattr(torch, dtype)
            if own is not None and fits and tuple(own.shape) == tuple(shape):
                found.append(own)
            else:
                found.append(torch.empty(shape, dtype=getattr(torch, dtype)))
        return found

    def _become(self, state: Any, *, whole: bool = True) -> None:
        over, number = _over(state), len(self.over)
        self.is_behind = len(over) > number
        if len(over) < number:
            self._begin_after(state)
            return
        self.over, found = over[:number], [*over, state][number]
        self._found = None if whole and number == len(over) else take_apart(found)
        self._become_of_training(found, whole=whole)

    def end_again(self) -> None:
        """Become what was loaded at a loop's end once more: the script passes over another loop.

        So each of them ends with it, whatever the script has done since the one before.
        """
        if self._found is not None:
            self._become_of_training(put_together(*self._found), whole=False)

    def _become_of_training(self, state: Any, *, whole: bool) -> None:
        self._ended = None
        begun = state.get("begun", self._begun)
        tell_differences(self._begun, begun)
        self._begun = begun
        with torch.no_grad():
            for module, one in zip(self.modules, state["modules"], strict=True):
                restore_module(module, one)
            for module, others in zip(self.modules, state.get("unsaved", ()), strict=False):
                restore_unsaved(module, others)
        self.is_whole = True
        for optimizer, one in zip(self.optimizers, state["optimizers"], strict=True):
            if whole or fits(optimizer, one):
                restore_optimizer(optimizer, one)
            else:
                self.is_whole = False
        for scheduler, one in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(one)
        for scaler, one in zip(self.scalers, state["scalers"], strict=True):
            scaler.load_state_dict(one)
        self._outside.became(state["outside"], state.get("place"))
        if self.variables is not None:
            self.variables.become(state.get("variables"))
        self._position.value = state.get("position")
        began = state.get("began", (0, 0))
        self._position.began = began if began is None else tuple(began)
        self._position.samples = state.get("samples")
        if self._script is not None:
            with torch.no_grad():
                self._script.become(state.get("script", {}))

    def entered(self) -> None:
        """Note that the script has come in where the state was.

        So it neither makes up for calls of schedulers nor leaves some out.
        """
        self._outside.pass_over(self._outside.place, self._outside.counts())

    def _begin_after(self, state: Mapping[str, Any]) -> None:
        """A cut holds the end of a training before: ours begins as the script has built it.

        Raises:
            Fenced: it is of before that end, so the script is further than the model: the script
                passed over the training before, and a cut of its end was damaged. Another life
                begins there.
        """
        if state.get("position") != self.over[-1]["position"]:
            raise Fenced
        self.is_whole = True
        self._position.value, self._position.samples = state["position"], state.get("samples")
        self._position.began = None


def _kind(value: Any) -> tuple[str, ...]:
    """Return what must be alike in members of what a module's ``state_dict`` holds."""
    if isinstance(value, Tensor):
        return str(value.dtype), str(tuple(value.shape))
    return (type(value).__name__,)


def _is_plain(tensor: Tensor) -> bool:
    """Tell whether a tensor's bytes lie in this machine's memory, in their order."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.layout == torch.strided


class Photograph:
    """State that can be read in parts, as long as nobody changes it."""

    def __init__(self, skeleton: Skeleton, tensors: Sequence[Tensor]) -> None:
        self._layout = encode_layout(skeleton, tensors)
        self.addresses = (
            tuple(one.data_ptr() for one in tensors) if all(map(_is_plain, tensors)) else ()
        )
        """Addresses of the tensors in memory; none: they cannot be read as they are."""
        self._bytes = [as_bytes(one) for one in tensors]
        size = sum(len(one) for one in self._bytes)
        self.num_parts = 1 + math.ceil(size / PART_BYTES)

    def part(self, number: int) -> tuple[bytes, int]:
        """The bytes of a part, and their digest."""
        if number == 0:
            return self._layout, zlib.crc32(self._layout)
        low, high = (number - 1) * PART_BYTES, number * PART_BYTES
        whole = b"".join(bytes(one.numpy()) for one in _pieces(self._bytes, low, high))
        return whole, zlib.crc32(whole)


class Arriving:
    """State that comes from a peer: read from its memory, or part by part after the first."""

    def __init__(self) -> None:
        self.num_parts = 1
        #: The peer's process and where its tensors lie, once that is known.
        self.readable: tuple[int, tuple[int, ...]] | None = None
        #: Whether all was read, and must be confirmed.
        self.unconfirmed = False
        self.layout: Layout | None = None
        self._tensors: list[Tensor] = []
        self._bytes: list[Tensor] = []
        self._missing = {0}
        self._asked: set[int] = set()

    @property
    def whole(self) -> bool:
        """Whether all of it is here."""
        return self.layout is not None and not (self._missing or self.unconfirmed)

    def ask(self, limit: int) -> list[int]:
        """The next parts to ask for, with at most ``limit`` on their way."""
        if self.readable is not None:
            return []
        room = limit - len(self._asked & self._missing)
        fresh = sorted(self._missing - self._asked)[: max(room, 0)]
        self._asked.update(fresh)
        return fresh

    def ask_again(self) -> None:
        """Have all asked for again: nothing is on its way any more."""
        self._asked.clear()

    def read(self, targets: list[Tensor]) -> None:
        """Take all of it as read into these, though it may have changed meanwhile."""
        self._tensors = targets
        self._missing.clear()
        self.readable, self.unconfirmed = None, True

    def take(self, number: int, num_parts: int, frame: memoryview, digest: int) -> bool:
        """Keep a part; False: it is damaged, or not wanted.

        Raises:
            PermanentError: it is whole, but no state.
        """
        if number not in self._missing or zlib.crc32(frame) != digest:
            return False
        if number == 0:
            self._begin(bytes(frame), num_parts)
        else:
            low = (number - 1) * PART_BYTES
            source = torch.frombuffer(frame, dtype=torch.uint8)
            at = 0
            for piece in _pieces(self._room(), low, low + PART_BYTES):
                piece.copy_(source[at : at + len(piece)])
                at += len(piece)
        self._missing.discard(number)
        return True

    def _begin(self, layout: bytes, num_parts: int) -> None:
        self.layout = decode_layout(layout)
        self.num_parts = num_parts
        self._missing.update(range(1, num_parts))

    def _room(self) -> list[Tensor]:
        """Return where the parts are written to."""
        if self.layout is not None and not self._tensors:
            self._tensors = [
                torch.empty(shape, dtype=getattr(torch, dtype))
                for dtype, shape in self.layout.tensors
            ]
            self._bytes = [one.reshape(-1).view(torch.uint8) for one in self._tensors]
        return self._bytes

    def state(self) -> Any:
        """Return all of the state."""
        assert self.layout is not None
        self._room()
        return put_together(self.layout.skeleton, self._tensors)


def _pieces(arrays: Sequence[Tensor], low: int, high: int) -> Iterator[Tensor]:
    """Bytes ``low`` to ``high`` of these one after the other."""
    start = 0
    for one in arrays:
        stop = start + len(one)
        if start < high and stop > low:
            yield one[max(low - start, 0) : min(high, stop) - start]
        start = stop
