"""The folders of cuts as the master keeps them: one directory per cut, manifests, deletion.

Servers (for cut 0: one worker) write the files; the master makes a cut valid by its manifest,
which is there before the journal says so, and removes what nobody needs any more.
"""

from collections.abc import Container, Iterable

import msgspec

from paceline.base.errors import PermanentError
from paceline.base.numbering import NO_CUT, NO_ENTRY, NO_EPOCH, START, CutNo
from paceline.cuts.manifest import (
    MANIFEST,
    CutManifest,
    patience_s,
    verify,
    write_file,
    write_manifest,
)
from paceline.cuts.remote import HANDOVER
from paceline.cuts.store import LocalCuts
from paceline.protocol.records import CutValid
from paceline.wire.messages.node import Copied, InitialWritten
from paceline.wire.schema import ModelSchema


class CutChosen(msgspec.Struct, frozen=True):
    """Fact: the cuts on disk were looked at, where the next epoch starts."""

    cut_no: CutNo | None
    damaged: list[tuple[CutNo, str]]


class CutFolders(LocalCuts):
    """The cuts of a job on the master's machine; it alone makes and removes them."""

    def make_first(self) -> None:
        """Make the folder of cut 0; what a former master left there is no cut."""
        path = self.disk.folder(NO_CUT)
        path.mkdir(parents=True, exist_ok=True)
        (path / MANIFEST).unlink(missing_ok=True)

    def seal(
        self, valid: CutValid, copies: Iterable[Copied], schema: ModelSchema, handover: bytes
    ) -> None:
        """Write the manifest; the cut can be loaded from then on.

        Args:
            valid: the cut.
            copies: what holders said of it.
            schema: of the model.
            handover: what lies beside it on disk, see `paceline.master.handover`.
        """
        copies, place = tuple(copies), valid.cut
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
        if not place.in_memory:
            write_file(self.sealed_at(place), HANDOVER, handover)
        write_manifest(self.sealed_at(place), manifest)
        if place.memory and not place.in_memory:
            # A cut of this number that never counted may have left one there.
            (self.memory.folder(place.cut_no) / MANIFEST).unlink(missing_ok=True)

    def patience_s(self, copies: Iterable[Copied]) -> float:
        """Return how long a cut of this size may take."""
        return patience_s(max((copied.num_bytes for copied in copies), default=0))

    def seal_first(self, written: InitialWritten, schema: ModelSchema) -> None:
        """Write the manifest of cut 0, the model before any sample."""
        manifest = CutManifest(
            cut_no=NO_CUT,
            epoch_no=NO_EPOCH,
            position=NO_ENTRY,
            step=START,
            committed=(),
            schema=schema,
            files={written.file: written.checksum},
            num_bytes=written.num_bytes,
        )
        write_manifest(self.disk.folder(NO_CUT), manifest)

    def delete_others(self, keep: Container[CutNo], newest: CutNo) -> None:
        """Remove every cut up to ``newest`` that is not to be kept, half-written ones included.

        In memory none is kept but the newest one: servers use its pages again.
        """
        for number in self.disk.numbers():
            if number <= newest and number not in keep:
                self.disk.delete(number)
        self.forget_memory(keep=newest)

    def forget_memory(self, keep: int) -> None:
        """Free what nodes have in memory of all cuts but this one."""
        for number in self.memory.numbers():
            if number != keep:
                self.memory.delete(number)

    def first_undamaged(self, cuts: Iterable[CutValid], trusted: Container[CutNo]) -> CutChosen:
        """The newest cut whose files are all intact, and those found damaged before it; reads them.

        Args:
            cuts: newest first.
            trusted: cuts that need not be read, only be there: just written, and never read so far.
        """
        damaged: list[tuple[CutNo, str]] = []
        for cut in cuts:
            number = cut.cut.cut_no
            try:
                found = verify(*self.places(cut.cut), contents=number not in trusted)
                if (found.step, found.committed) != (cut.step, cut.committed):
                    where = self.sealed_at(cut.cut)
                    raise PermanentError(f"{where}: holds another cut of this number")
            except PermanentError as error:
                damaged.append((number, str(error)))
            else:
                return CutChosen(number, damaged)
        return CutChosen(None, damaged)
