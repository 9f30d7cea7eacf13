"""Proofs on the control plane: the secret itself never crosses a connection.

A squatter can take the port of a dead master. So the server proves itself first, and the client
says nothing that is worth anything before that:

    client -> server   nonce of the client
    server -> client   nonce of the server, HMAC(secret, "server" ...)
    client -> server   both nonces, HMAC(secret, "client", method ...), with the stream or call

Each HMAC covers both nonces, its purpose, and the place: the port that the client has dialed, or
the unix socket. So a squatter at one port cannot pass the words of a client on to the true master
at another one. The server keeps nothing of a client that has proven nothing: its nonce carries the
time, and a MAC with a key of this server alone. A proof counts once.

Between machines all of this goes through TLS (`wire.control_tls`), unless the spec says otherwise.
Then a host on the way can read and change what follows. See docs/security.md.
"""

import hashlib
import hmac
import secrets
import struct
import time

from paceline.base.errors import PermanentError

NONCE_BYTES = 32
VALID_S = 60.0
"""Age up to which a server believes in a nonce of its own."""
ON_UNIX = "unix"
"""Place of all unix sockets; nobody else can listen at those of this user."""

_TIME = struct.Struct("!d")
_MAC_BYTES = 32
_OWN_BYTES = _TIME.size + NONCE_BYTES + _MAC_BYTES


def _mac(key: bytes, *parts: bytes) -> bytes:
    text = b"".join(struct.pack("!I", len(part)) + part for part in parts)
    return hmac.digest(key, text, hashlib.sha256)


def _proof(secret: bytes, role: str, place: str, *parts: bytes) -> bytes:
    return _mac(secret, b"paceline control", role.encode(), place.encode(), *parts)


class ControlDoor:
    """The server's side."""

    def __init__(self, secret: bytes) -> None:
        self._secret, self._key = secret, secrets.token_bytes(_MAC_BYTES)
        #: Nonces that were used, with their times.
        self._used: dict[bytes, float] = {}

    def greet(self, nonce: bytes, place: str) -> bytes:
        """Answer a client's first word with a nonce and the proof of this server."""
        fresh = _TIME.pack(time.monotonic()) + secrets.token_bytes(NONCE_BYTES)
        own = fresh + _mac(self._key, fresh, nonce, place.encode())
        return own + _proof(self._secret, "server", place, nonce, own)

    def admits(self, word: str, method: str, place: str) -> bool:
        """Tell whether a client has proven that it has the secret.

        Args:
            word: from `Introduction.word`.
            method: that it calls.
            place: at which it came in.
        """
        try:
            nonce, own, proof = map(bytes.fromhex, word.split("."))
        except ValueError:
            return False
        if len(own) != _OWN_BYTES:
            return False
        fresh, mac = own[:-_MAC_BYTES], own[-_MAC_BYTES:]
        expected = _proof(self._secret, "client", place, method.encode(), nonce, own)
        if not hmac.compare_digest(mac, _mac(self._key, fresh, nonce, place.encode())):
            return False
        return hmac.compare_digest(proof, expected) and self._is_first(fresh)

    def _is_first(self, fresh: bytes) -> bool:
        now_s = time.monotonic()
        (made_s,) = _TIME.unpack_from(fresh)
        self._used = {one: at_s for one, at_s in self._used.items() if now_s - at_s < VALID_S}
        if now_s - made_s > VALID_S or fresh in self._used:
            return False
        self._used[fresh] = made_s
        return True


class Introduction:
    """The client's side, for one stream or call."""

    def __init__(self, secret: bytes, place: str) -> None:
        self.nonce = secrets.token_bytes(NONCE_BYTES)
        """The client's first word."""
        self._secret, self._place = secret, place

    def word(self, answer: bytes, method: str) -> str:
        """Check the server's proof, and return that of the client.

        Raises:
            PermanentError: the server does not have the secret.
        """
        own, proof = answer[:_OWN_BYTES], answer[_OWN_BYTES:]
        expected = _proof(self._secret, "server", self._place, self.nonce, own)
        if not hmac.compare_digest(proof, expected):
            raise PermanentError(
                "what listens there does not have this job's secret: it is another program, or the "
                "secret is another job's"
            )
        said = _proof(self._secret, "client", self._place, method.encode(), self.nonce, own)
        return f"{self.nonce.hex()}.{own.hex()}.{said.hex()}"
