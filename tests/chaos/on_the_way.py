"""What is between two machines, and reads along."""

import contextlib
import socket
import threading

SO_RCVBUFFORCE, ETH_P_ALL = 33, 3
"""Of Linux; Python's socket has no names for them."""


class Recorder:
    """A host on the way: passes everything on, and keeps it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._to = (host, int(port))
        # At the same port, as the proofs name it.
        self._listener = socket.create_server(("127.0.0.2", int(port)))
        self.address = f"127.0.0.2:{port}"
        self.heard = bytearray()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one: socket.socket) -> None:
        with one, socket.create_connection(self._to) as other:
            back = threading.Thread(target=self._pass_on, args=(other, one), daemon=True)
            back.start()
            self._pass_on(one, other)
            back.join()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self.heard += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Wire:
    """All packets at an interface of this machine, from now on; needs root."""

    def __init__(self, interface: str) -> None:
        self._packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self._packets.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self._packets.bind((interface, 0))
        self._interface = interface
        self.heard = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while data := self._packets.recv(1 << 17):
            self.heard += data
            if data.endswith(END):
                return

    def close(self) -> None:
        """Read what has come, and no more."""
        # By a socket of its own: what a socket sends it does not hear.
        with self._packets, socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as last:
            last.sendto(END, (self._interface, 0))
            self._thread.join()


END = bytes(14) + b"\x88\xb5" + b"the end of what is read along"
"""A frame of an experimental protocol, which nobody takes."""
