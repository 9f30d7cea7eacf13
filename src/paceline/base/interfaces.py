"""Network interfaces of this machine."""

import errno
import fcntl
import socket
import struct

from paceline.base.errors import ConfigError

_GET_ADDRESS = 0x8915
"""SIOCGIFADDR of linux/sockios.h."""


def interface_of(address: str) -> str:
    """The name of the interface with this IPv4 address.

    Raises:
        ConfigError: there is none.
    """
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe, _GET_ADDRESS, request)
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise ConfigError(f"listen: no interface of this machine has the address {address}")


def bind_error(host: str, port: int) -> str | None:
    """Say why nobody can listen there, a TCP port of IPv4; None: one can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: connections of a former life that are still closing are in no way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            taken = "another process listens there"
            return taken if error.errno == errno.EADDRINUSE else str(error.strerror)
    return None


def free_port(host: str) -> int:
    """Return a TCP port of IPv4 at which nobody listens now; until it is used somebody might.

    Raises:
        OSError: no interface has the address, or no port is free.
    """
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
