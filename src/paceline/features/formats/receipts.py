"""A receipt: what paceline says of an exported file, signed, in a file of its own beside it.

The receipt lies beside the model (``model.safetensors.receipt.json``) and not in it: so any format
has one, equal models stay equal files, and no other program meets metadata that it does not know.
Digests of the file, and of each tensor where the format shows them, bind the two together.
"""

from pathlib import Path

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.files import write_file
from paceline.base.numbering import CutNo, EpochNo, StepNo

SUFFIX = ".receipt.json"
SIGNED = b"paceline receipt, version 1\n"
"""Bytes before the statement that is signed, so that no other signature passes for one of these."""


class EpochsTrained(msgspec.Struct, frozen=True, kw_only=True):
    """Epochs of one loop over data, one after the other, of which equally much is in the model."""

    feed: int
    """Number of the loop over `job.batches` in the job, from 0 on."""
    first: int
    """Number of the first of these epochs, from 1 on."""
    last: int
    trained: int
    """Samples of each of these epochs that are in the model; no position of an epoch counts twice.
    """
    size: int | None
    """Samples of an epoch; None: not known in advance (a stream)."""


class LedgerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger of the cut: which samples are in the model, and how often."""

    samples: int
    """Sum over all epochs."""
    promise: str
    """``samples`` of the job's spec: ``exactly-once``, ``at-least-once`` or ``at-most-once``."""
    epochs: tuple[EpochsTrained, ...]
    """Empty with samples in the model: the cut does not say how long epochs are."""
    sha256: str
    """Digest of the committed set, all intervals of positions in order."""


class DeathsSurvived(msgspec.Struct, frozen=True, kw_only=True):
    """Processes that died before the cut was valid, by order or not, and what followed."""

    workers: int
    servers: int
    masters: int
    restores: int
    """Times that the model and the ledger went back to a cut."""


class CutOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The cut that a file was exported from, and the job that made it."""

    job_id: str
    strategy: str
    mode: str
    deterministic: bool
    seed: int
    script: str
    script_sha256: str
    """Digest of the script as it was when the file was exported; empty: it was not there."""
    cut_no: CutNo
    epoch_no: EpochNo
    step: StepNo
    files: dict[str, str]
    """The files of the cut, with the checksums of its manifest."""
    ledger: LedgerCounts
    deaths: DeathsSurvived | None
    """None: the cut was exported without the job's events."""


class FileDigests(msgspec.Struct, frozen=True, kw_only=True):
    """Digests of an exported file."""

    sha256: str
    num_bytes: int
    tensors: dict[str, str]
    """Digest of each tensor (dtype, shape and bytes) by name; empty: the format does not show them.
    """


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """All that a receipt says; this is signed."""

    paceline: str
    """Version that exported the file."""
    exported_s: float
    """Unix time."""
    file_name: str
    file_format: str
    num_tensors: int
    num_buffers: int
    """Buffers among the tensors that servers kept with the script's state."""
    left_out: tuple[str, ...]
    """Buffers of the model that are not in the file, since they never changed."""
    content: FileDigests
    origin: CutOrigin


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A statement with its signature."""

    statement: msgspec.Raw
    key: str
    """Public key, as ``ed25519:`` and 32 bytes of base64."""
    signature: str
    """Signature of `SIGNED` and the statement without spaces, in base64."""


def receipt_of(file: Path) -> Path:
    """Return the path of the receipt of a file."""
    return file.with_name(file.name + SUFFIX)


def signed_bytes(statement: bytes) -> bytes:
    """Return the bytes to sign: the statement's JSON without spaces, after `SIGNED`."""
    return SIGNED + msgspec.json.format(statement, indent=-1)


def write_receipt(path: Path, receipt: Receipt) -> None:
    """Write a receipt, for people to read as well.

    Raises:
        OSError: it cannot be written.
    """
    write_file(path, msgspec.json.format(msgspec.json.encode(receipt), indent=1) + b"\n")


def read_receipt(path: Path) -> tuple[Receipt, Statement]:
    """Read a receipt; its signature is not checked.

    Raises:
        ConfigError: there is none, or it is not one.
    """
    try:
        receipt = msgspec.json.decode(path.read_bytes(), type=Receipt)
        return receipt, msgspec.json.decode(receipt.statement, type=Statement)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: there is no receipt; `paceline checkpoint export` writes one beside the "
            "file, which must be copied along, or name it with --receipt"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path}: the receipt cannot be read ({error.strerror})") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: this is no receipt of paceline ({error})") from error
