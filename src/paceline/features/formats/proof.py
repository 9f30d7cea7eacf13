"""The verdict on an exported file and its receipt: what they prove together, and what not."""

from pathlib import Path
from typing import NamedTuple

from paceline.features.formats import keys
from paceline.features.formats.digests import digests_of
from paceline.features.formats.receipts import (
    DeathsSurvived,
    EpochsTrained,
    FileDigests,
    LedgerCounts,
    Statement,
    read_receipt,
    signed_bytes,
)
from paceline.jobs.wording import counted

MAX_EPOCHS = 4
"""Runs of epochs that are told; more are counted."""


class FileVerdict(NamedTuple):
    """Outcome of a check."""

    lines: tuple[str, ...]
    """Three of a proof, one of a fault."""
    proven: bool
    fault: str = ""
    """Kind of fault: ``receipt``, ``key``, ``tensor`` or ``file``; empty: proven."""


def check(file: Path, receipt_path: Path, pinned: str = "") -> FileVerdict:
    """Check a file against its receipt.

    Args:
        file: as it was exported.
        receipt_path: of its receipt.
        pinned: the public key that must have signed it; empty: any.

    Raises:
        ConfigError: one of them is not there, or the receipt is none.
    """
    found = digests_of(file)
    receipt, said = read_receipt(receipt_path)
    if not keys.is_signed(signed_bytes(receipt.statement), receipt.signature, receipt.key):
        return _bad("receipt", f"{receipt_path}: the signature is wrong: the receipt was changed")
    if pinned and receipt.key != pinned:
        return _bad("key", f"{receipt_path}: signed by {receipt.key}, expected {pinned}")
    if fault := _fault(file, found, said):
        return _bad(*fault)
    return FileVerdict(tuple(_proof(file, said, receipt.key, is_pinned=bool(pinned))), proven=True)


def _bad(fault: str, line: str) -> FileVerdict:
    return FileVerdict((line,), proven=False, fault=fault)


def _fault(file: Path, found: FileDigests, said: Statement) -> tuple[str, str] | None:
    """Say how a file differs; tensors decide where they can be seen, not the bytes around them."""
    held, expected = found.tensors, said.content.tensors
    if found.sha256 == said.content.sha256 or (held and held == expected):
        return None
    of = f"the receipt of {said.file_name} (cut {said.origin.cut_no} of {said.origin.job_id})"
    if not held or not expected:
        was = f"{said.content.num_bytes:,} bytes then, {found.num_bytes:,} now"
        return "file", f"{file}: another file than that of {of}, or changed since ({was})"
    if held.keys() != expected.keys():
        odd = sorted(held.keys() ^ expected.keys())
        where = "the file" if odd[0] in held else "the receipt"
        only = f"only {where} has the tensor {odd[0]!r}"
        return "file", f"{file}: another file than that of {of}: {only}"
    wrong = sorted(name for name, digest in expected.items() if held[name] != digest)
    if len(wrong) == len(expected) > 1:
        return "file", f"{file}: another file than that of {of}: all its tensors differ"
    more = f" and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
    was = f"changed since the export of cut {said.origin.cut_no}"
    return "tensor", f"{file}: tensor {wrong[0]!r}{more} was {was}"


# --------------------------------------------------------------------------- three lines


def _proof(file: Path, said: Statement, key: str, *, is_pinned: bool) -> list[str]:
    origin = said.origin
    cut = f"cut {origin.cut_no}, step {origin.step:,}, of job {origin.job_id}"
    what = counted(said.num_tensors, "tensor")
    if said.num_buffers:
        what += f", {said.num_buffers:,} of them buffers,"
    deaths = f"; {_deaths(origin.deaths)}" if origin.deaths is not None else ""
    whose = "the pinned key" if is_pinned else "your own key" if _is_own(key) else "the key"
    return [
        f"{file}: {what} as paceline {said.paceline} exported them from {cut}",
        f"signed: {_trained(origin.ledger)}; {origin.strategy}, mode {origin.mode}{deaths}",
        f"proves that {whose} {key} signed this for these tensors; not whose key that is (compare "
        "with --key), and not what script and data were",
    ]


def _is_own(key: str) -> bool:
    return key == keys.own_public()


def _trained(ledger: LedgerCounts) -> str:
    parts = [_epochs(one) for one in ledger.epochs[:MAX_EPOCHS]]
    if len(ledger.epochs) > MAX_EPOCHS:
        parts.append(f"and {len(ledger.epochs) - MAX_EPOCHS:,} more")
    by_epoch = f" ({', '.join(parts)})" if parts else ""
    times = ledger.promise.replace("-", " ")
    return f"{counted(ledger.samples, 'sample')} in the model, {times} per epoch{by_epoch}"


def _epochs(one: EpochsTrained) -> str:
    if one.size is None:
        return f"stream {one.feed}: {one.trained:,}"
    named = f"epoch {one.first}" if one.first == one.last else f"epochs {one.first} to {one.last}"
    return f"loop {one.feed}, {named}: {one.trained:,} of {one.size:,}"


def _deaths(found: DeathsSurvived) -> str:
    counts = {"worker": found.workers, "server": found.servers, "master": found.masters}
    told = [counted(count, name) for name, count in counts.items() if count]
    back = f", back to a cut {counted(found.restores, 'time')}" if found.restores else ""
    return f"survived the deaths of {', '.join(told)}{back}" if told else f"no deaths{back}"
