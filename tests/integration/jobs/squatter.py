"""Another user of the machine: takes ports that become free, and knocks at sockets.

``squatter.py UID FOLDER``. Lines on its standard input say what it goes for: ``port N``, or
``path P``. Whatever it hears is appended to FOLDER/heard; a line in FOLDER/log says what it got.
"""

import contextlib
import os
import selectors
import socket
import sys
from pathlib import Path

SETTINGS = b"\0\0\0\4\0\0\0\0\0"  # an empty frame of HTTP/2, as a server sends it first
POLL_S = 0.002


class Squatter:
    """One other user."""

    def __init__(self, folder: Path) -> None:
        self._log = (folder / "log").open("a", buffering=1)
        self._heard = (folder / "heard").open("ab", buffering=0)
        self._ports: set[int] = set()
        self._paths: set[str] = set()
        self._calls = selectors.DefaultSelector()
        self._calls.register(sys.stdin.buffer, selectors.EVENT_READ)

    def run(self) -> None:
        """Until the standard input ends."""
        os.set_blocking(0, False)
        while True:
            for key, _ in self._calls.select(POLL_S):
                if key.fileobj is sys.stdin.buffer:
                    said = os.read(0, 1 << 16)
                    if not said:
                        return
                    for line in said.decode().splitlines():
                        what, _, name = line.partition(" ")
                        if what == "port":
                            self._ports.add(int(name))
                        else:
                            self._paths.add(name)
                elif key.data == "listener":
                    self._accept(key.fileobj)
                else:
                    self._hear(key.fileobj)
            self._ports = {port for port in self._ports if not self._take(port)}
            self._paths = {path for path in self._paths if not self._enter(path)}

    def _take(self, port: int) -> bool:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(64)
        except OSError:
            listener.close()
            return False
        listener.setblocking(False)
        self._calls.register(listener, selectors.EVENT_READ, "listener")
        self._log.write(f"took {port}\n")
        return True

    def _enter(self, path: str) -> bool:
        with socket.socket(socket.AF_UNIX) as one:
            for act in (one.connect, one.bind):
                try:
                    act(path)
                except PermissionError:
                    continue
                except OSError:
                    return False  # nobody is there yet
                self._log.write(f"entered {path}\n")
                return True
        self._log.write(f"refused {path}\n")
        return True

    def _accept(self, listener: object) -> None:
        assert isinstance(listener, socket.socket)
        with contextlib.suppress(OSError):
            call, _ = listener.accept()
            call.setblocking(False)
            call.send(SETTINGS)
            self._calls.register(call, selectors.EVENT_READ, "call")
            self._log.write("called\n")

    def _hear(self, call: object) -> None:
        assert isinstance(call, socket.socket)
        said = b""
        with contextlib.suppress(OSError):
            said = call.recv(1 << 16)
        if said:
            self._heard.write(said)
        else:
            self._calls.unregister(call)
            call.close()


if __name__ == "__main__":
    os.setgroups([])
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
    Squatter(Path(sys.argv[2])).run()
