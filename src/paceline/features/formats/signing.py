"""The receipt of a file that was just exported: put together, signed, and written beside it."""

import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from paceline.base.errors import PermanentError
from paceline.features.formats.digests import digests_of
from paceline.features.formats.keys import own_key, public_text, sign
from paceline.features.formats.origin import origin_of
from paceline.features.formats.receipts import (
    Receipt,
    Statement,
    receipt_of,
    signed_bytes,
    write_receipt,
)
from paceline.jobs.cuts import FoundCut, FoundCuts


def write_signed(
    out: Path, file_format: str, done: dict[str, Any], found: FoundCuts, cut: FoundCut
) -> None:
    """Write the receipt of ``out``.

    Args:
        out: the file.
        file_format: its format's name.
        done: the report of the process that exported it (`ExportedModel`).
        found: the cuts among which the cut is.
        cut: the cut that was exported.

    Raises:
        PermanentError: it is not known which job made the cut, or the receipt cannot be written.
        ConfigError: this user's key cannot be used.
    """
    statement = Statement(
        paceline=version("paceline"),
        exported_s=round(time.time(), 3),
        file_name=out.name,
        file_format=file_format,
        num_tensors=done["num_tensors"],
        num_buffers=done["num_buffers"],
        left_out=tuple(done["left_out"]),
        content=digests_of(out),
        origin=origin_of(found, cut),
    )
    text = msgspec.json.encode(statement)
    try:
        key = own_key()
        signature = sign(key, signed_bytes(text))
        signed = Receipt(statement=msgspec.Raw(text), key=public_text(key), signature=signature)
        write_receipt(receipt_of(out), signed)
    except OSError as error:
        raise PermanentError(f"{error.filename or receipt_of(out)}: {error.strerror}") from error
