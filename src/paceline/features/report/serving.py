"""Running the server of pages: in the foreground for `paceline ui`, or beside `run --web`.

``python -m paceline.features.report.serving`` serves until its stdin is closed, that is until the
command that has started it ends, however it does. It writes its address as its first line.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from urllib.parse import quote

import uvicorn

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.base.processes import SAFE_PATH
from paceline.features.report.server import application

HOST = "127.0.0.1"
FIRST_PORT, NUM_PORTS = 8300, 40
"""Ports that are tried where none was named, so that the address is mostly the same."""
LAST_PORT = 65_535
NICENESS = 10
START_S = 20.0
"""Seconds that the server beside a run has to start, at most."""


def listen(host: str, port: int | None) -> socket.socket:
    """Open the server's socket.

    Args:
        host: address or name of this machine.
        port: which one; 0: any free one; None: the first free one from `FIRST_PORT` on.

    Raises:
        ConfigError: it cannot be had.
    """
    if port is not None and port > LAST_PORT:
        raise ConfigError(f"--port: got {port}, expected at most {LAST_PORT}; leave --port out")
    ports = [port] if port is not None else [*range(FIRST_PORT, FIRST_PORT + NUM_PORTS), 0]
    for number in ports:
        try:
            return socket.create_server((host, number), backlog=128)
        except OSError as error:
            fault = error
    raise ConfigError(
        f"--host {host} --port {ports[-1]}: {fault.strerror or fault}; name another port, or "
        "leave --port out"
    )


class UiServer:
    """The server at one socket, with a token of its own."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._token = secrets.token_urlsafe(24)
        host, port = opened.getsockname()[:2]
        # "*": a server that other machines reach has names that nobody knows here.
        hosts = ["127.0.0.1", "localhost"] if host == HOST else ["*"]
        config = uvicorn.Config(
            application(self._token, hosts),
            log_level="error",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._place = f"http://{host}:{port}"

    def address(self, job_id: str = "") -> str:
        """Return the address of the page of a job, or of all, with the token."""
        path = f"/jobs/{quote(job_id)}" if job_id else "/"
        return f"{self._place}{path}#{self._token}"

    def serve(self) -> None:
        """Answer at low priority until SIGINT, SIGTERM, or `end`."""
        os.nice(NICENESS)
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again, once it has ended
            self._server.run(sockets=[self._socket])

    def end(self) -> None:
        """End `serve`, from any thread."""
        self._server.should_exit = True


class ServerBeside:
    """A server of pages in a process of its own, which ends with this one."""

    def __init__(self, job_id: str) -> None:
        """Start it, and wait for its address.

        Raises:
            ConfigError: it does not start.
        """
        module = ["-m", "paceline.features.report.serving", job_id]
        self._process = subprocess.Popen(
            [sys.executable, *SAFE_PATH, *module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the job
        )
        killer = threading.Timer(START_S, self._process.kill)
        killer.start()
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        killer.cancel()
        if not self.address:
            self.close()
            raise ConfigError("--web: the server of pages did not start; leave --web out")

    def close(self) -> None:
        """End it."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve_beside(job: JobDir) -> ServerBeside:
    """Serve the page of a job while this process watches it."""
    return ServerBeside(job.job_id)


def _end_with_stdin(server: UiServer) -> None:
    sys.stdin.buffer.read()
    server.end()


def main() -> None:
    """Serve beside the command that has started this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = UiServer(listen(HOST, None))
    print(server.address(sys.argv[1]), flush=True)  # noqa: T201
    threading.Thread(target=_end_with_stdin, args=[server], daemon=True).start()
    server.serve()


if __name__ == "__main__":
    main()
