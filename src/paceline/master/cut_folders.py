"""The folders of cuts as the master keeps them: one directory per cut, manifests, deletion.

Servers (for cut 0: one worker) write the files; the master makes a cut valid by its manifest,
which is there before the journal says so, and removes what nobody needs any more.
"""

import shutil
from collections.abc import Container, Iterable
from pathlib import Path

from paceline.base.errors import PermanentError
from paceline.cuts.manifest import (
    MANIFEST,
    CutManifest,
    places,
    sealed_at,
    verify,
    write_manifest,
)
from paceline.protocol.records import CutValid
from paceline.wire.messages.base import CutRef
from paceline.wire.messages.node import Copied
from paceline.wire.schema import ModelSchema


class CutFolders:
    """All cuts of a job: on disk below ``root``, the newest one also below ``memory``."""

    def __init__(self, root: Path, memory: Path) -> None:
        self.root, self.memory = root, memory

    def directory(self, cut_no: int) -> str:
        """Where the files of a cut are on disk."""
        return str(self.root / f"{cut_no:06d}")

    def in_memory(self, cut_no: int) -> str:
        """Where they are before that."""
        return str(self.memory / f"{cut_no:06d}")

    def make(self, cut_no: int) -> str:
        """The directory of a cut that is about to be written."""
        path = self.directory(cut_no)
        Path(path).mkdir(parents=True, exist_ok=True)
        return path

    def seal(
        self, place: CutRef, valid: CutValid, copies: Iterable[Copied], schema: ModelSchema
    ) -> None:
        """Write the manifest; the cut can be loaded from where ``place`` says from then on."""
        copies = tuple(copies)
        manifest = CutManifest(
            cut_no=place.cut_no,
            epoch_no=valid.epoch_no,
            position=max(copy.position for copy in copies),
            step=valid.step,
            committed=valid.committed,
            schema=schema,
            files={copy.file: copy.checksum for copy in copies if copy.file},
            num_bytes=sum(copy.num_bytes for copy in copies),
        )
        write_manifest(sealed_at(place), manifest)
        if place.memory and not place.in_memory:
            # A cut of this number that never counted may have left one there.
            (Path(place.memory) / MANIFEST).unlink(missing_ok=True)

    def delete_others(self, keep: Container[int], newest: int) -> None:
        """Remove every cut up to ``newest`` that is not to be kept, half-written ones included.

        In memory none is kept but the newest one: servers use its pages again.
        """
        for path in _numbered(self.root):
            if int(path.name) <= newest and int(path.name) not in keep:
                # First what makes it a cut: it must not seem whole when half of it is gone.
                (path / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(path, ignore_errors=True)
        self.forget_memory(keep=newest)

    def forget_memory(self, keep: int) -> None:
        """Free what nodes have in memory of all cuts but this one."""
        for path in _numbered(self.memory):
            if int(path.name) != keep:
                shutil.rmtree(path, ignore_errors=True)


def _numbered(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.exists() else ()
    return [path for path in found if path.name.isdigit()]


def first_undamaged(
    cuts: Iterable[CutValid], trusted: Container[int]
) -> tuple[int | None, list[tuple[int, str]]]:
    """The newest cut whose files are all intact, and those found damaged before it; reads them.

    Args:
        cuts: newest first.
        trusted: cuts that need not be read, only be there: just written, and never read so far.
    """
    damaged: list[tuple[int, str]] = []
    for cut in cuts:
        number = cut.cut.cut_no
        try:
            found = verify(*places(cut.cut), contents=number not in trusted)
            if (found.step, found.committed) != (cut.step, cut.committed):
                raise PermanentError(f"{sealed_at(cut.cut)}: holds another cut of this number")
        except PermanentError as error:
            damaged.append((number, str(error)))
        else:
            return number, damaged
    return None, damaged
