"""The key by which a user's paceline signs receipts: Ed25519, made at first use.

It says that the same user's paceline wrote two receipts. It does not say who that user is: whoever
wants to know compares the public key with one that was published elsewhere.
"""

import base64
import contextlib
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from paceline.base.errors import ConfigError
from paceline.base.jobdir import home

KIND = "ed25519:"
KEY_FILE = "receipt.key"


def key_file() -> Path:
    """Return the path of this user's private key."""
    return home() / KEY_FILE


def own_key() -> Ed25519PrivateKey:
    """Read this user's key; makes it if there is none.

    Raises:
        ConfigError: others can read it, or it is damaged.
        OSError: it can be neither read nor made.
    """
    path = key_file()
    if not path.exists():
        _make(path)
    found = path.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        mode = f"{found.st_mode & 0o777:04o}"
        raise ConfigError(
            f"{path}: got a key of mode {mode}, expected one that only you can read; remove it, "
            "since others may have it, and the next export makes another"
        )
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_key(path) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path)
    return key


def _no_key(path: Path) -> ConfigError:
    return ConfigError(f"{path}: this is no Ed25519 key; remove it, and the next export makes one")


def _make(path: Path) -> None:
    """Make a key, durably. Of two commands that do so at the same time one wins."""
    path.parent.mkdir(0o755, parents=True, exist_ok=True)
    image = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(image)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink()


def public_text(key: Ed25519PrivateKey) -> str:
    """Write the public part of a key as a receipt has it."""
    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return KIND + base64.b64encode(raw).decode()


def sign(key: Ed25519PrivateKey, message: bytes) -> str:
    """Sign a message; the signature in base64."""
    return base64.b64encode(key.sign(message)).decode()


def is_signed(message: bytes, signature: str, public: str) -> bool:
    """Tell whether this is the signature of a message by the owner of a public key."""
    try:
        raw = base64.b64decode(public.removeprefix(KIND), validate=True)
        key = Ed25519PublicKey.from_public_bytes(raw)
        key.verify(base64.b64decode(signature, validate=True), message)
    except (ValueError, InvalidSignature):
        return False
    return public.startswith(KIND)


def pinned(text: str) -> str:
    """Read the value of ``--key``: a public key, or a file that holds one.

    Raises:
        ConfigError: it is neither.
    """
    word = text
    if not text.startswith(KIND):
        try:
            word = Path(text).read_text().strip()
        except (OSError, UnicodeDecodeError):
            word = ""
    if not word.startswith(KIND):
        raise ConfigError(
            f"--key: got {text!r}, expected a public key like {KIND}..., or a file that holds one; "
            "a receipt has it as `key`"
        )
    return word


def own_public() -> str:
    """Return this user's public key; empty: this user has none that can be read."""
    try:
        return public_text(own_key()) if key_file().exists() else ""
    except (ConfigError, OSError):
        return ""
