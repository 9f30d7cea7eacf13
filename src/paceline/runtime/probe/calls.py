"""Collective calls of an unmodified script, noted in the call ring where torch carries them out.

All of them end in a few operators of torch's dispatcher (``c10d::allreduce_`` and so on): those of
``torch.distributed``, of DDP's reducer in C++, of FSDP, of DTensor's functional collectives, of
pipelines. Kernels of ours stand in front of torch's: they note the call, and then make it. A call
costs some 10 µs more, and takes Python's lock twice, which another thread of Python may hold for
milliseconds; nothing is sent.

The end of a call is the moment at which its future is done. Some have none, as transfers between
two ranks: their end is that of ``Work.wait``. Calls on a GPU have no end here, since their future
is done when they are queued.

Reference: FALCON (arXiv:2410.12588), section 4.1, hooks NCCL's own functions by LD_PRELOAD.
Differs: at torch's dispatcher, so that gloo is seen as well, and no library has to be preloaded.
"""

import functools
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from paceline.wire.call_ring import OPS, CallGroup, CallRingWriter

PAIRS = ("send", "recv_")
"""Between two ranks."""
_SECOND = ("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_")
"""The larger tensors come second."""
_KEYS = ("CPU", "CUDA")
_MOST_OPEN = 64
"""Calls of a step that are held until somebody waits for them."""


class CallProbe:
    """Notes calls from `install` on, for good.

    Args:
        ring: where.
        step: says which step the script is at.
    """

    def __init__(self, ring: CallRingWriter, step: Callable[[], int]) -> None:
        self._ring, self._step = ring, step
        self._groups: dict[tuple[str, int, int], int] = {}
        self._open: dict[int, tuple[Work, int]] = {}
        """By identity: calls without a future. Held, or another would have their identity."""
        self._is_off = False
        #: Its registrations are withdrawn with it.
        self._library = torch.library.Library("c10d", "IMPL")

    def install(self) -> None:
        """Stand in front of torch's kernels."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is a kernel already, which is the point
            for op, name in enumerate(OPS):
                for key in _KEYS:
                    if torch._C._dispatch_has_kernel_for_dispatch_key(f"c10d::{name}", key):
                        self._library.impl(name, self._kernel(op, key), key, with_keyset=True)
        self._time_waits()

    def _kernel(self, op: int, key: str) -> Callable[..., Any]:
        name = OPS[op]
        call = torch.library.get_kernel(f"c10d::{name}", key).call_boxed
        schema = getattr(torch.ops.c10d, name).default._schema
        group_at = [argument.name for argument in schema.arguments].index("process_group")
        sized_at = int(name in _SECOND)
        is_pair, ends_here = name in PAIRS, key == "CPU"

        def begin(args: Sequence[Any]) -> int:
            group = self._group(args[group_at], op, args[group_at + 1] if is_pair else -1)
            return self._ring.begin(group, op, _num_bytes(args[sized_at]), self._step())

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            entry = self._unless_off(begin, args)
            found = call(keys, *args, **kwargs)
            if ends_here and entry is not None:
                self._unless_off(self._await_end, found, entry)
            return found

        return kernel

    def _unless_off(self, act: Callable[..., int | None], *args: Any) -> int | None:
        """Do what the script must not suffer from: the first error ends it, and is said."""
        if self._is_off:
            return None
        try:
            return act(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, the script goes on
            self._is_off = True
            sys.stderr.write(f"paceline: collective calls are watched no more: {error!r}\n")
            return None

    def _await_end(self, found: Any, entry: int) -> None:
        work = Work.unbox(found[-1] if isinstance(found, tuple) else found)
        try:
            work.get_future().add_done_callback(lambda _: self._ring.end(entry))
        except RuntimeError:  # it has none: transfers, and gloo's reduce-scatter
            if len(self._open) < _MOST_OPEN:
                self._open[id(work)] = work, entry

    def step_over(self) -> None:
        """Let go of what nobody has waited for in the step."""
        self._open.clear()

    def _group(self, boxed: Any, op: int, peer: int) -> int:
        group = ProcessGroup.unbox(boxed)
        key = (group.group_name, op, peer) if peer >= 0 else (group.group_name, -1, -1)
        number = self._groups.get(key)
        if number is None:
            number = self._groups[key] = len(self._groups)
            self._ring.add_group(_describe(group, OPS[op], peer))
        return number

    def _time_waits(self) -> None:
        wait = Work.wait

        @functools.wraps(wait)
        def timed(work: Work, *args: Any, **kwargs: Any) -> bool:
            _, entry = self._open.pop(id(work), (None, -1))
            if entry < 0:
                return wait(work, *args, **kwargs)
            start_s = time.monotonic()
            try:
                return wait(work, *args, **kwargs)
            finally:
                self._ring.end(entry, start_s)

        Work.wait = timed  # type: ignore[method-assign, assignment]


def _describe(group: ProcessGroup, op: str, peer: int) -> CallGroup:
    """The group; of a transfer to, or from, a peer: sender and receiver."""
    try:
        ranks = dist.get_process_group_ranks(group)
    except (KeyError, ValueError, RuntimeError):
        ranks = list(range(group.size()))  # made by hand: it stands in no table of torch's
    if peer >= 0:
        pair = ranks[group.rank()], ranks[peer]
        ranks = list(pair if op == "send" else reversed(pair))
    return CallGroup(name=group.group_name, ranks=tuple(ranks), backend=group.name())


def _num_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(map(_num_bytes, value))
