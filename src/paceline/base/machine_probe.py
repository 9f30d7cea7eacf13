"""Whether the kernel of a machine answers, whatever its processes do."""

import asyncio
import contextlib
import socket
import threading
from urllib.parse import urlsplit

PROBE_PORT = 1
"""Port at which nothing listens: the kernel refuses, and no backlog fills."""
NUM_PROBES = 3
"""Connections that are tried at once: one packet in a hundred may be lost on its way."""
VOLLEYS_S = (0.0, 0.15)
"""Seconds after which they are tried: packets are lost in bursts."""
WAIT_S = 0.35
"""Seconds that a machine has to answer; the longest way through a cluster takes tenths of that."""
LOOK_S = 0.01
"""Seconds in which an answer that has come is seen, after a time in which nothing was."""

_Place = tuple[object, ...]


async def answers(machine: str) -> bool:
    """Tell whether a machine refuses a connection, or takes it, within `WAIT_S`.

    A machine whose name is not found in that time does not.

    Args:
        machine: a host, or the address of a service there, as ``tcp://HOST``.
    """
    host = urlsplit(machine).hostname or machine
    if (info := await _look_up(host)) is None:
        return False
    tries = [
        asyncio.ensure_future(_try(info, wait_s)) for wait_s in VOLLEYS_S for _ in range(NUM_PROBES)
    ]

    async def first() -> bool:
        for done in asyncio.as_completed(tries):
            if await done:
                return True
        return False

    try:
        return await asyncio.wait_for(first(), WAIT_S)
    except TimeoutError:
        # Where this process was kept waiting, an answer may have come with the end of the wait.
        await asyncio.wait(tries, timeout=LOOK_S)
        return any(one.done() and not one.cancelled() and one.result() for one in tries)
    finally:
        for one in tries:
            one.cancel()


async def listens(address: str) -> bool:
    """Tell whether a port takes a connection within `WAIT_S`; ``address``: HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), WAIT_S)
    except (OSError, ValueError):  # a timeout is an OSError
        return False
    writer.close()
    return True


async def _look_up(host: str) -> _Place | None:
    """Find where the probe port of a host is; None: nobody says within `WAIT_S`."""
    with contextlib.suppress(OSError):
        return _find(host, socket.AI_NUMERICHOST)
    loop = asyncio.get_running_loop()
    found: asyncio.Future[_Place | None] = loop.create_future()

    def look() -> None:
        place = None
        with contextlib.suppress(OSError):
            place = _find(host)
        with contextlib.suppress(RuntimeError):  # the loop has been closed since
            loop.call_soon_threadsafe(found.set_result, place)

    # Not a thread of the loop: these are few, and its end waits for them.
    threading.Thread(target=look, daemon=True).start()
    for wait_s in (WAIT_S, LOOK_S):  # as `answers` does where this process was kept waiting
        await asyncio.wait({found}, timeout=wait_s)
    return found.result() if found.done() else None


def _find(host: str, flags: int = 0) -> _Place:
    return socket.getaddrinfo(host, PROBE_PORT, type=socket.SOCK_STREAM, flags=flags)[0]


async def _try(info: _Place, wait_s: float) -> bool:
    family, kind, protocol, _, place = info
    await asyncio.sleep(wait_s)
    with socket.socket(family, kind, protocol) as probe:  # type: ignore[arg-type]
        probe.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(probe, place)  # type: ignore[arg-type]
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return True
