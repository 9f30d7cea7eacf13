"""Access to a data plane: only for processes that know the job's secret.

On one host the socket lies in a directory of mode 0700, and PLAIN: a token that follows from the
secret and the address. Between hosts CURVE: encrypted, with keys that follow from the secret; or,
with encryption off, PLAIN again, whose token a listener on the network could repeat. ZAP,
libzmq's protocol for asking, is answered from the server's own poll: it needs no thread. Peers that
do not come as far as asking (no ZMTP, another CURVE key) show in libzmq's monitor of the socket.
"""

import hashlib
import hmac
import logging
from typing import Any

import zmq
from zmq.utils import z85

_DOMAIN = b"paceline"
_USER = b"paceline"
_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_NUM_ZAP_FRAMES = 6
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL

_log = logging.getLogger(__name__)


def _derived(secret: bytes, purpose: str) -> bytes:
    return hmac.digest(secret, purpose.encode(), hashlib.sha256)


def _token(secret: bytes, address: str) -> bytes:
    return _derived(secret, f"data {address}").hex().encode()


def _key(secret: bytes, role: str) -> tuple[bytes, bytes]:
    """Public and secret key; Curve25519 takes any 32 bytes."""
    private = z85.encode(_derived(secret, f"curve {role}"))
    return zmq.curve_public(private), private


def secure_client(sock: Any, secret: bytes, address: str, *, encrypted: bool) -> None:
    """Set up a socket that will connect to ``address``."""
    if encrypted:
        sock.curve_publickey, sock.curve_secretkey = _key(secret, "client")
        sock.curve_serverkey = _key(secret, "server")[0]
    else:
        sock.plain_username, sock.plain_password = _USER, _token(secret, address)


class Doorkeeper:
    """Admits peers to one server socket; `socket` is to be polled, `answer` called."""

    def __init__(self, context: Any, secret: bytes, *, encrypted: bool) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.bind(_ZAP_ADDRESS)
        self.num_refused = 0
        self._secret = secret
        self._encrypted = encrypted
        self._token = b""
        self._seen: set[bytes] = set()
        self.monitor: Any = None
        """Socket of failed connections: poll it after `secure`, and call `look` when it has one."""

    def secure(self, sock: Any) -> None:
        """Set up the server's socket, before it is bound."""
        self.monitor = sock.get_monitor_socket(_FAILED)
        sock.zap_domain = _DOMAIN
        if self._encrypted:
            sock.curve_server = True
            sock.curve_secretkey = _key(self._secret, "server")[1]
        else:
            sock.plain_server = True

    def bound(self, address: str) -> None:
        """The address that clients connect to is known now."""
        self._token = _token(self._secret, address)

    def answer(self) -> None:
        """Answer all who wait."""
        while True:
            try:
                request = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            version, request_id = request[:2]
            good = self._admits(request)
            if not good:
                self._refuse(request)
            code, text, user = (b"200", b"OK", _USER) if good else (b"400", b"refused", b"")
            self.socket.send_multipart([version, request_id, code, text, user, b""])

    def look(self) -> None:
        """Note who failed before the secret; libzmq does not say who it was."""
        while self.monitor.poll(0):
            self.monitor.recv_multipart()
            self.num_refused += 1
            self._log_once(b"unknown: no handshake")

    def _admits(self, request: list[bytes]) -> bool:
        if len(request) < _NUM_ZAP_FRAMES:
            return False
        mechanism, credentials = request[5], request[6:]
        if self._encrypted:
            expected = z85.decode(_key(self._secret, "client")[0])
            return (
                mechanism == b"CURVE"
                and len(credentials) == 1
                and hmac.compare_digest(credentials[0], expected)
            )
        return (
            mechanism == b"PLAIN"
            and len(credentials) == 2
            and hmac.compare_digest(credentials[1], self._token)
        )

    def _refuse(self, request: list[bytes]) -> None:
        self.num_refused += 1
        self._log_once(request[3] if len(request) > 3 else b"")

    def _log_once(self, peer: bytes) -> None:
        if peer not in self._seen:
            self._seen.add(peer)
            _log.warning("data_peer_refused peer=%s", peer.decode("ascii", "replace"))

    def close(self) -> None:
        """Close, after the socket that was guarded."""
        if self.monitor is not None:
            self.monitor.close(linger=0)
        self.socket.close(linger=0)
