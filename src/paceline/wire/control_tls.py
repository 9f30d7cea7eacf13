"""TLS at the port of a master: who shows which certificate, and what is wrong when it fails.

The master shows a certificate that the job's authority has signed (`jobs.authority`). A client has
the authority's certificate from the ticket that has the secret, and trusts no other. It checks
for the name of the master, and not for an address: the authority signs for one master alone, which
may be reached by another address than the one at which it listens.

gRPC speaks TLS 1.3 between two of its own ends. When a connection fails it says little of the
reason, in words of its version, so `fault` asks again, with Python's `ssl`.
"""

import contextlib
import socket
import ssl
from typing import Any

from paceline.wire.quiet_grpc import grpc

MASTER = "master.paceline"
"""Name of each master in its certificate."""
FAULT_S = 2.0
"""Seconds for the question why TLS has failed."""
_KEY_END = b"-----END PRIVATE KEY-----\n"
_NO_TLS = "WRONG_VERSION_NUMBER"


def server_credentials(identity: bytes) -> Any:
    """Return what a master shows: its private key and certificate, both as PEM in one."""
    key, _, certificate = identity.partition(_KEY_END)
    return grpc.ssl_server_credentials([(key + _KEY_END, certificate)])


def client_credentials(authority: bytes) -> Any:
    """Return what a client believes in: this certificate (PEM), and no other."""
    return grpc.ssl_channel_credentials(authority)


def fault(address: str, authority: bytes) -> str:
    """Say why a client cannot speak with the listener at an address; empty: TLS is not why.

    Args:
        address: ``HOST:PORT``.
        authority: certificate of the job's authority, PEM; empty: the client speaks in clear.
    """
    host, _, port = address.rpartition(":")
    try:
        context = _context(authority)
    except (UnicodeDecodeError, ssl.SSLError):
        return "the certificate of the job's authority, by which its master is known, is damaged"
    with contextlib.suppress(OSError):  # nobody there, or no answer
        return _handshake(context, host, int(port))
    return ""


def _context(authority: bytes) -> ssl.SSLContext:
    if authority:
        context = ssl.create_default_context(cadata=authority.decode("ascii"))
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # nothing is said there; only who speaks TLS is asked
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    return context


def _handshake(context: ssl.SSLContext, host: str, port: int) -> str:
    believes = context.verify_mode == ssl.CERT_REQUIRED
    with socket.create_connection((host, port), FAULT_S) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=MASTER):
                pass
        except ssl.SSLCertVerificationError as error:
            return (
                "it shows a certificate that this job's authority has not signed for a master "
                f"({error.verify_message}): it is another job or program, or a host on the way "
                "answers in its place"
            )
        except ssl.SSLError as error:
            if believes and error.reason == _NO_TLS:
                return "it speaks no TLS, as this job's master does: it is another job or program"
            return ""
    if believes:
        return ""
    return (
        "it speaks TLS, and this job has no authority by whose certificate its master is known: "
        "it is another job or program"
    )
