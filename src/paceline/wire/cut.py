"""A cut, on disk or in memory: files with checksums, made valid by a manifest.

Servers, agents and the master write, verify and find cuts through this; what is inside the servers'
files is their own affair (`runtime.ps.cutfile`). Files are written beside their final name, synced
and renamed; the manifest comes last: a directory without a readable one holds no cut.

A cut in memory is such a directory, too, but each of its files lies in the folders of the nodes
that hold a copy of it, one folder a node.
"""

import hashlib
import mmap
import os
from pathlib import Path
from typing import Any

import msgspec

from paceline.base.errors import PermanentError
from paceline.base.samples import Span
from paceline.wire.schema import ModelSchema

FORMAT_VERSION = 1
MANIFEST = "manifest.json"


class CutManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a cut is: the state of the model and of the ledger after the same update."""

    format_version: int = FORMAT_VERSION
    cut_no: int
    epoch_no: int
    position: int
    """Place in the order of updates."""
    step: int
    committed: tuple[Span, ...]
    """The samples that are in the model."""
    schema: ModelSchema
    files: dict[str, str]
    """File name -> checksum."""
    num_bytes: int
    """Sum over the files."""


class _Sealed(msgspec.Struct, frozen=True):
    manifest: msgspec.Raw
    checksum: str


def checksum(image: Any) -> str:
    """SHA-256, as hexadecimal digits after ``sha256:`` (1.8 GB/s where the processor helps)."""
    return "sha256:" + hashlib.sha256(image).hexdigest()


def write_file(directory: Path, name: str, image: Any) -> None:
    """Write bytes as ``directory/name``.

    Durable when it returns; until then the name does not exist or holds what it held.
    """
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f".{name}.partial"
    with partial.open("wb") as file:
        file.write(image)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(directory / name)
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_manifest(directory: Path, manifest: CutManifest) -> None:
    """Make the cut valid: to be called when all its files are written."""
    text = msgspec.json.encode(manifest)
    sealed = msgspec.json.encode(_Sealed(msgspec.Raw(text), checksum(text)))
    write_file(directory, MANIFEST, msgspec.json.format(sealed, indent=1))


def read_manifest(directory: Path) -> CutManifest:
    """The verified manifest of a cut.

    Raises:
        PermanentError: there is none, it is damaged, or of another format.
    """
    path = directory / MANIFEST
    try:
        sealed = msgspec.json.decode(path.read_bytes(), type=_Sealed)
        text = msgspec.json.format(bytes(sealed.manifest), indent=-1)
        manifest = msgspec.json.decode(text, type=CutManifest)
    except (OSError, msgspec.DecodeError) as error:
        raise PermanentError(f"{path}: no readable manifest ({error}); use an older cut") from error
    if checksum(text) != sealed.checksum:
        raise PermanentError(f"{path}: checksum differs, the manifest is damaged; use an older cut")
    if manifest.format_version != FORMAT_VERSION:
        raise PermanentError(
            f"{path}: format version {manifest.format_version}, this release reads {FORMAT_VERSION}"
        )
    return manifest


def map_file(directory: Path, name: str, expected: str) -> mmap.mmap:
    """One file of a cut, or an undamaged copy of it, mapped read-only and verified.

    Raises:
        PermanentError: the file is missing, truncated or damaged; names it.
    """
    errors = []
    for path in sorted(directory.glob(f"*/{name}")) or [directory / name]:
        try:
            return _map_verified(path, expected)
        except PermanentError as error:
            errors.append(str(error))
    raise PermanentError("; ".join(errors))


def _map_verified(path: Path, expected: str) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            image = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise PermanentError(f"{path}: cannot be read ({error}); use an older cut") from error
    if checksum(image) != expected:
        raise PermanentError(
            f"{path}: checksum differs from the manifest's ({len(image)} bytes), the file is "
            f"truncated or damaged; use an older cut"
        )
    return image


def verify(directory: Path) -> CutManifest:
    """The manifest of a cut whose files were all read and found undamaged.

    Raises:
        PermanentError: anything is missing, truncated or damaged; names the file.
    """
    manifest = read_manifest(directory)
    for name, expected in manifest.files.items():
        map_file(directory, name, expected).close()
    return manifest
