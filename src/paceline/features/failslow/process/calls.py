"""Collective calls of an unmodified script, noted in the call ring where torch carries them out.

All of them are operators of torch's dispatcher: ``c10d::allreduce_`` and so on, for those of
``torch.distributed``, of DDP's reducer in C++, of FSDP and of pipelines, and
``_c10d_functional::all_reduce`` and so on for DTensor. Kernels of ours stand in front of torch's:
they note the call, and then have it made. A call costs some 10 µs more, and takes Python's lock
twice, which another thread of Python may hold for milliseconds; nothing is sent.

Torch's kernel runs without Python's lock, as always: by ``redispatch``, from the keys of autograd,
or of a backend that has the same kernel. With the lock held (``call_boxed``), a kernel that waits
for gloo's threads would wait for ever for one that ends another call here.

The end of a call is the moment at which its future is done. Some have none, as transfers between
two ranks: their end is that of ``Work.wait``, or of ``wait_tensor``. Calls on a GPU have no end
here, since their future is done when they are queued.

Reference: FALCON (arXiv:2410.12588), section 4.1, hooks NCCL's own functions by LD_PRELOAD.
Differs: at torch's dispatcher, so that gloo is seen as well, and no library has to be preloaded.
"""

import functools
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from paceline.features.failslow.call_ring import OPS, CallGroup, CallRingWriter
from paceline.runtime.probe.faults import is_of_script

PAIRS = ("send", "recv_")
"""Between two ranks."""
_SECOND = ("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_")
"""The larger tensors come second."""
_DEVICES = ("CPU", "CUDA")
_AFTER_AUTOGRAD = torch._C._after_autograd_keyset
_SAME_KERNEL = torch._C.DispatchKeySet(torch._C.DispatchKey.MAIA)
"""A backend that is no one's here: functional collectives have one kernel for all."""
_MOST_OPEN = 64
"""Calls of a step that are held until somebody waits for them."""


class CallProbe:
    """Notes calls from `install` on, for good.

    Args:
        ring: where.
        step: says which step the script is at.
        called: gets operator, group and bytes of each call before it is noted.
    """

    def __init__(
        self,
        ring: CallRingWriter,
        step: Callable[[], int],
        called: Callable[[str, int, int], None],
    ) -> None:
        self._ring, self._step, self._called = ring, step, called
        self._groups: dict[tuple[str, int, int], int] = {}
        self._lock = threading.Lock()
        """Lock of the table of groups: calls come from any thread."""
        self._open: dict[int, tuple[Work, int]] = {}
        """Calls without a future, by their identity; held, or another would have their identity."""
        self._results: dict[int, int] = {}
        """Entries of functional collectives, by the address of their results. Results are not held:
        an entry stays for one step."""
        self._is_off = False
        #: Their registrations are withdrawn with them.
        self._libraries = [
            torch.library.Library(name, "IMPL") for name in ("c10d", "_c10d_functional")
        ]

    def install(self) -> None:
        """Stand in front of torch's kernels."""
        plain, functional = self._libraries
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is a kernel already, which is the point
            for op, name in enumerate(OPS):
                for device in _DEVICES:
                    if hasattr(torch.ops.c10d, name):
                        key, kernel = f"Autograd{device}", self._plain(op, device)
                        plain.impl(name, kernel, key, with_keyset=True)
                    else:
                        kernel = self._functional(op, device)
                        functional.impl(name, kernel, device, with_keyset=True)
            functional.impl("wait_tensor", self._wait_tensor(), "CPU", with_keyset=True)
        self._time_waits()
        self._forget_groups()
        os.register_at_fork(after_in_child=self._end_in_child)

    def _plain(self, op: int, device: str) -> Callable[..., Any]:
        name = OPS[op]
        torchs = getattr(torch.ops.c10d, name).default
        with_gradient = torch.library.get_kernel(f"c10d::{name}", f"Autograd{device}").call_boxed
        names = [argument.name for argument in torchs._schema.arguments]
        group_at, sized_at = names.index("process_group"), int(name in _SECOND)
        is_pair, ends_here = name in PAIRS, device == "CPU"

        def begin(args: Sequence[Any]) -> int:
            group = ProcessGroup.unbox(args[group_at])
            number = self._group(group, op, args[group_at + 1] if is_pair else -1)
            return self._begin(number, op, _num_bytes(args[sized_at]))

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            # Torch's kernel of autograd warns that there is no gradient; it keeps Python's lock.
            warns = torch.is_grad_enabled() and any(map(_needs_gradient, args[:group_at]))
            if warns and not is_pair:
                return with_gradient(keys, *args, **kwargs)
            entry = self._unless_off(begin, args)
            # Stages of a pipeline receive into tensors that need a gradient.
            found = (
                with_gradient(keys, *args, **kwargs)
                if warns
                else torchs.redispatch(keys & _AFTER_AUTOGRAD, *args, **kwargs)
            )
            if ends_here and entry is not None:
                self._unless_off(self._await_end, found, entry)
            return found

        return kernel

    def _functional(self, op: int, device: str) -> Callable[..., Any]:
        torchs = getattr(torch.ops._c10d_functional, OPS[op]).default
        names = [argument.name for argument in torchs._schema.arguments]
        group_at, ends_here = names.index("group_name"), device == "CPU"

        def begin(args: Sequence[Any]) -> int:
            given = args[group_at]
            group = c10d._resolve_process_group(given) if isinstance(given, str) else given  # type: ignore[attr-defined, arg-type]
            return self._begin(self._group(group, op, -1), op, _num_bytes(args[0]))

        def await_end(found: Any, entry: int) -> None:
            for result in [found] if isinstance(found, Tensor) else found[-1:]:
                self._results[result.data_ptr()] = entry

        def kernel(_keys: Any, *args: Any, **kwargs: Any) -> Any:
            entry = self._unless_off(begin, args)
            found = torchs.redispatch(_SAME_KERNEL, *args, **kwargs)
            if ends_here and entry is not None:
                self._unless_off(await_end, found, entry)
            return found

        return kernel

    def _begin(self, group: int, op: int, num_bytes: int) -> int:
        self._called(OPS[op], group, num_bytes)
        return self._ring.begin(group, op, num_bytes, self._step())

    def _wait_tensor(self) -> Callable[..., Any]:
        torchs = torch.ops._c10d_functional.wait_tensor.default

        def kernel(_keys: Any, tensor: Tensor) -> Any:
            entry, start_s = self._results.pop(tensor.data_ptr(), None), time.monotonic()
            found = torchs.redispatch(_SAME_KERNEL, tensor)
            if entry is not None:
                self._unless_off(self._ring.end, entry, start_s)
            return found

        return kernel

    def _unless_off(self, act: Callable[..., int | None], *args: Any) -> int | None:
        """Do what the script must not suffer from: the first error ends it, and is said."""
        if self._is_off:
            return None
        try:
            return act(*args)
        except Exception as error:
            if is_of_script(error):
                raise
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
        self._results.clear()

    def _group(self, group: ProcessGroup, op: int, peer: int) -> int:
        key = (group.group_name, op, peer) if peer >= 0 else (group.group_name, -1, -1)
        number = self._groups.get(key)
        if number is None:
            with self._lock:
                number = self._groups.get(key)
                if number is None:
                    number = self._ring.add_group(_describe(group, OPS[op], peer))
                    self._groups[key] = number
        return number

    def _forget_groups(self) -> None:
        """Torch's names begin again after its groups were destroyed."""
        destroy = dist.destroy_process_group

        @functools.wraps(destroy)
        def destroyed(*args: Any, **kwargs: Any) -> None:
            with self._lock:
                self._groups.clear()
            destroy(*args, **kwargs)

        dist.destroy_process_group = c10d.destroy_process_group = destroyed

    def _end_in_child(self) -> None:
        self._is_off = True

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


def _needs_gradient(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.requires_grad
    return any(map(_needs_gradient, value))
