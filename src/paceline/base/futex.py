"""Waiting for a word of shared memory to change, and waking those who wait: Linux's futex.

Nobody looks around meanwhile: a process that waits uses no processor, which the one that it waits
for may need.
"""

import ctypes
import platform
import threading

_NUMBERS = {"x86_64": 202, "aarch64": 98}
_WAIT, _WAKE = 0, 1
_EVERYBODY = 0x7FFFFFFF
_LOOK_S = 0.002
"""Seconds between two looks at the word, where the number of the system call is not known."""

_number = _NUMBERS.get(platform.machine())
IS_KNOWN = _number is not None
"""Whether the kernel's call is known here: else `fence` does nothing, and `wake` wakes nobody."""
_orders_writes = platform.machine() == "x86_64"
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_never, _nothing = threading.Event(), ctypes.c_int32()


class _Timeout(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def wait_for_change(word: ctypes.c_int32, value: int, timeout_s: float) -> None:
    """Return when the word has been woken, is not ``value``, or the time is over; or too soon."""
    if _number is None:
        _never.wait(min(timeout_s, _LOOK_S))
        return
    whole = int(timeout_s)
    timeout = _Timeout(whole, int((timeout_s - whole) * 1e9))
    _syscall(_number, ctypes.byref(word), _WAIT, value, ctypes.byref(timeout), None, 0)


def wake(word: ctypes.c_int32) -> None:
    """Wake all processes that wait for the word."""
    if _number is not None:
        _syscall(_number, ctypes.byref(word), _WAKE, _EVERYBODY, None, None, 0)


def fence() -> None:
    """Keep what is read and written before apart from what is read and written after.

    A processor that shows its writes in their order needs no help. Else the kernel has a barrier in
    each wake.
    """
    if not _orders_writes:
        wake(_nothing)
