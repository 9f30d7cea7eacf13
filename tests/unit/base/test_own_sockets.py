"""Nobody but this user is at either end of a socket of this user."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from paceline.base.errors import PermanentError, TransientError
from paceline.base.own_sockets import check_listener, end_connections_of_others

NOBODY = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def path() -> Iterator[Path]:
    with TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder) / "a.sock"


@pytest.fixture
def listener(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        yield listener


def test_a_socket_of_this_user_is_good(listener: socket.socket, path: Path) -> None:
    check_listener(path)


def test_where_nobody_listens_one_may_try_again(path: Path) -> None:
    with pytest.raises(TransientError, match="nobody listens"):
        check_listener(path)
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(path))
        path.chmod(0o600)
    with pytest.raises(TransientError, match="nobody answers"):
        check_listener(path)


def test_a_folder_or_socket_that_others_may_use_is_refused(
    listener: socket.socket, path: Path
) -> None:
    path.chmod(0o666)
    with pytest.raises(PermanentError, match="expected a socket of user"):
        check_listener(path)
    path.chmod(0o600)
    path.parent.chmod(0o755)
    with pytest.raises(PermanentError, match="closed to others"):
        check_listener(path)
    path.parent.chmod(0o700)
    link = path.with_name("link.sock")
    link.symlink_to(path)
    with pytest.raises(PermanentError, match="expected a socket"):
        check_listener(link)


@as_root
def test_a_socket_of_another_user_is_refused(listener: socket.socket, path: Path) -> None:
    for owned in (path, path.parent):
        os.chown(owned, NOBODY, NOBODY)
        with pytest.raises(PermanentError, match=f"got user {NOBODY}"):
            check_listener(path)
        os.chown(owned, 0, 0)


LISTENS = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    os.setuid(65534)
    listener.bind("/proc/self/fd/" + sys.argv[1] + "/a.sock")
    listener.listen()
    print("up", flush=True)
    sys.stdin.read()
"""


@as_root
def test_the_listener_itself_is_asked_for(path: Path) -> None:
    """Another user has made the socket while the folder was open; root has then taken it over."""
    path.parent.chmod(0o777)
    folder = os.open(path.parent, os.O_RDONLY)
    other = subprocess.Popen(
        [sys.executable, "-c", LISTENS, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[folder],
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"up\n"
        path.parent.chmod(0o700)
        os.chown(path, 0, 0)
        path.chmod(0o600)
        with pytest.raises(PermanentError, match=f"user {NOBODY} listens there"):
            check_listener(path)
    finally:
        other.communicate()
        os.close(folder)


CONNECTS = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as one:
    one.connect(sys.argv[1])
    one.settimeout(20.0)
    print("up", flush=True)
    print("ended" if one.recv(1) == b"" else "served", flush=True)
"""


@as_root
def test_connections_of_others_are_ended_and_no_others(listener: socket.socket, path: Path) -> None:
    path.parent.chmod(0o755)
    path.chmod(0o666)
    with socket.socket(socket.AF_UNIX) as mine:
        mine.connect(str(path))
        served, _ = listener.accept()
        other = subprocess.Popen(
            [sys.executable, "-c", CONNECTS, str(path)], stdout=subprocess.PIPE
        )
        accepted, _ = listener.accept()
        with served, accepted:
            assert end_connections_of_others(path) == {NOBODY}
            assert other.communicate(timeout=20.0)[0] == b"up\nended\n"
            served.sendall(b"x")
            assert mine.recv(1) == b"x"
