"""Unix sockets of this user: where nobody else can listen, and nobody else can connect.

The kernel lets a process connect to a socket only if it may enter the folder and write to the
socket. So a socket in a folder of mode 0700 has only this user, and root, at both ends. Nobody has
to rely on that alone: `check_listener` and `end_connections_of_others` ask the kernel who the other
end is.
"""

import os
import socket
import stat
from pathlib import Path

from paceline.base.errors import ConfigError, PermanentError, TransientError
from paceline.base.processes import peer_of

MAX_PATH_BYTES = 107
"""Longest path of a unix socket; the kernel has no room for more."""


def check_path(path: Path) -> None:
    """Check that a socket can have this path.

    Raises:
        ConfigError: the path is too long.
    """
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise ConfigError(
            f"{path}: got the path of a socket with {length} bytes, expected {MAX_PATH_BYTES} at "
            "most; set TMPDIR to a folder with a shorter path"
        )


def check_listener(path: Path) -> None:
    """Check that this user, and nobody else, listens at a socket.

    Raises:
        PermanentError: the socket, its folder or the listener belongs to another user, or others
            may write there.
        TransientError: nobody listens.
    """
    own = os.geteuid()
    try:
        folder, found = path.parent.lstat(), path.lstat()
    except OSError as error:
        raise TransientError(f"nobody listens at {path} ({error.strerror})") from error
    for what, status, is_kind in (
        (path.parent, folder, stat.S_ISDIR(folder.st_mode) and not folder.st_mode & 0o077),
        (path, found, stat.S_ISSOCK(found.st_mode) and not found.st_mode & 0o022),
    ):
        if not is_kind or status.st_uid != own:
            raise PermanentError(
                f"{what}: got user {status.st_uid} and mode {stat.filemode(status.st_mode)}, "
                f"expected a socket of user {own} in a folder that is closed to others"
            )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except OSError as error:
            raise TransientError(f"nobody answers at {path} ({error.strerror})") from error
        listener = peer_of(probe)[1]
    if listener != own:
        raise PermanentError(f"{path}: user {listener} listens there, expected user {own}")


def end_connections_of_others(path: Path) -> set[int]:
    """End all connections of other users to a socket at which this process listens.

    gRPC accepts connections on its own and does not say whose they are, so this looks through the
    process's descriptors.

    Args:
        path: to which the socket was bound.

    Returns:
        The users whose connections were ended.
    """
    users = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # it was closed meanwhile
            continue
        with found:
            user = _user_at(found, str(path))
            if user not in (None, 0, os.geteuid()):
                found.shutdown(socket.SHUT_RDWR)
                users.add(user)
    return users


def _user_at(connection: socket.socket, path: str) -> int | None:
    """Return who is at the other end of a connection to this path; None: it is none."""
    try:
        if connection.family != socket.AF_UNIX or connection.getsockname() != path:
            return None
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return None
        return peer_of(connection)[1]
    except OSError:
        return None
