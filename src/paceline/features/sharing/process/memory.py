"""The memory of a device that a training process shares: a limit, and what lies beyond it.

What the limit leaves no room for lies in the host's memory (it is spilled), where the device can
read it. Tensors of a mini-batch are allocated again in the next one, so a limit counts from there.
Tensors that live longer, as parameters do, are taken home.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import torch


class MemoryUse(NamedTuple):
    """Memory that the tensors of a process take."""

    device_bytes: int
    """Bytes of tensors on the device, now."""
    peak_bytes: int
    """Most bytes of these at one time since the look before."""
    host_bytes: int
    """Bytes of tensors that belong to the device and lie in the host's memory, now."""
    spilled_bytes: int
    """Bytes allocated there since the look before."""


class DeviceMemory(Protocol):
    """The memory of a device, as this process uses it; called at mini-batch boundaries."""

    def set_limit(self, num_bytes: int | None) -> int:
        """Limit the tensors on the device; None: no limit.

        Returns:
            The limit in effect, which may be above the one asked for.
        """
        ...

    def look(self) -> MemoryUse:
        """Return the use of the memory; the next look counts from here."""
        ...

    def take_home(self, tensors: Iterable[torch.Tensor]) -> int:
        """Move tensors from the host's memory onto the device, as far as the limit allows.

        Returns:
            The bytes moved.
        """
        ...
