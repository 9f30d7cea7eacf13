"""Cuts of one number, of which one never counted."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from paceline.base.samples import Span
from paceline.cuts.manifest import checksum, read_manifest, write_file
from paceline.master.cut_folders import CutChosen, CutFolders
from paceline.protocol.records import CutValid
from paceline.wire.messages.base import CutRef
from paceline.wire.messages.node import Copied
from paceline.wire.schema import ModelSchema


def sealed(folders: CutFolders, step: int, *, stored: bool) -> CutValid:
    """Cut 1 as its master seals it, with a file in memory or on disk."""
    ref = CutRef(cut_no=1, memory=True, stored=stored)
    image, name = bytes([step]), f"worker-{step}.safetensors"
    write_file(
        folders.disk.folder(1) if stored else folders.memory.folder(1) / "worker-0", name, image
    )
    committed = (Span(0, 0, step),)
    copied = Copied(
        epoch_no=1,
        inc=step,
        cut_no=1,
        position=step,
        step=step,
        committed=committed,
        sharers=(step,),
        file=name,
        checksum=checksum(image),
        num_bytes=1,
    )
    valid = CutValid(cut=ref, epoch_no=1, step=step, committed=committed)
    folders.seal(valid, [copied], ModelSchema(), b"")
    return valid


def test_a_cut_on_disk_is_not_taken_for_one_in_memory_that_never_counted(tmp_path: Path) -> None:
    folders = CutFolders(tmp_path / "cuts", tmp_path / "memory")
    sealed(folders, 3, stored=False)
    valid = sealed(folders, 5, stored=True)
    assert read_manifest(*folders.places(valid.cut)).step == 5
    assert folders.first_undamaged([valid], frozenset({1})) == CutChosen(1, [])


@pytest.mark.parametrize("trusted", [frozenset(), frozenset({1})])
def test_a_cut_that_is_another_than_the_journal_says_is_damaged(
    tmp_path: Path, trusted: frozenset[int]
) -> None:
    folders = CutFolders(tmp_path / "cuts", tmp_path / "memory")
    valid = sealed(folders, 5, stored=True)
    other = replace(valid, step=6, committed=(Span(0, 0, 6),))
    chosen = folders.first_undamaged([other], trusted)
    ((damaged, reason),) = chosen.damaged
    assert (chosen.cut_no, damaged) == (None, 1)
    assert "another cut" in reason
