"""Which cut a journal is begun again from that ends before it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.base.errors import PermanentError
from paceline.base.jobdir import JobDir
from paceline.base.numbering import CutNo, EntryNo, EpochNo, StepNo
from paceline.base.record_log import encode
from paceline.cuts.manifest import CutManifest, write_file, write_manifest
from paceline.cuts.remote import HANDOVER, Handover, pack_handover
from paceline.cuts.store import FolderStore
from paceline.master.job_clock import MasterStarted
from paceline.master.journal import Journal
from paceline.master.short_journal import mend
from paceline.protocol.nodes.node import JobEnded
from paceline.protocol.records import CutGone, CutValid
from paceline.wire.messages.base import CutRef
from paceline.wire.schema import ModelSchema
from paceline.wire.spec import JobSpec

SPEC = JobSpec(script="/train.py")


class Scene:
    """A job directory with a journal and cuts."""

    def __init__(self, path: Path) -> None:
        self.job = JobDir(path / "job-1")
        self.job.path.mkdir()
        self.journal = Journal(self.job.journal)
        self.disk = FolderStore(self.job.cuts)

    def cut(self, number: int, job_id: str = "job-1", *, beside: bool = True) -> None:
        folder = self.disk.folder(CutNo(number))
        if beside:
            handover = Handover(
                job_id=job_id, spec=SPEC, launched_s=5.0, journal=(encode(valid(number)),)
            )
            write_file(folder, HANDOVER, pack_handover(handover))
        manifest = CutManifest(
            cut_no=CutNo(number),
            epoch_no=EpochNo(1),
            position=EntryNo(number),
            step=StepNo(number),
            committed=(),
            schema=ModelSchema(),
            files={},
            num_bytes=0,
        )
        write_manifest(folder, manifest)

    def mended(self) -> tuple[int, int] | None:
        self.job.resumed.touch()
        told = mend(self.job, self.journal, self.disk)
        return None if told is None else (told.knew, told.cut_no)

    def records(self) -> list[object]:
        return list(self.journal.replay())


def valid(number: int) -> CutValid:
    cut = CutRef(cut_no=CutNo(number), epoch_no=EpochNo(1), stored=True)
    return CutValid(cut=cut, step=StepNo(number), committed=(), epoch_no=EpochNo(1))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.journal.close()


def test_a_journal_that_ends_before_the_newest_cut_begins_again_from_it(scene: Scene) -> None:
    scene.journal.append([valid(3)])
    for number in (3, 6, 7):
        scene.cut(number)
    assert scene.mended() == (3, 7)
    assert scene.records() == [MasterStarted(started_s=5.0), valid(7), JobEnded()]
    assert scene.mended() is None, "once more: nothing is to do"


def test_a_journal_that_knows_of_all_cuts_stays(scene: Scene) -> None:
    scene.journal.append([valid(7), CutGone(cut_no=CutNo(7))])
    for number in (0, 6, 7):  # the newest one was found damaged, say
        scene.cut(number)
    assert scene.mended() is None
    assert len(scene.records()) == 2


def test_a_cut_that_is_damaged_gives_way_to_the_one_before(scene: Scene) -> None:
    for number in (6, 7):
        scene.cut(number)
    manifest = scene.disk.folder(CutNo(7)) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    assert scene.mended() == (-1, 6)
    assert scene.disk.numbers() == [6], "a file of half a cut could get into another one"
    assert not scene.job.resumed.exists()


def test_the_first_cut_is_the_model_before_any_sample(scene: Scene) -> None:
    scene.cut(0, beside=False)
    assert scene.mended() is None


def test_cuts_of_another_job_in_the_same_folder_are_none_of_this_one(scene: Scene) -> None:
    scene.cut(9, "job-2")
    assert scene.mended() is None
    scene.cut(7)
    assert scene.mended() == (-1, 7)


def test_a_whole_cut_that_nobody_knows_is_not_overwritten_without_a_word(scene: Scene) -> None:
    scene.journal.append([valid(3)])
    scene.cut(7, beside=False)
    with pytest.raises(
        PermanentError, match=r"journal.sqlite: got a journal that ends before cut 7"
    ):
        scene.mended()


def test_while_something_of_the_job_may_live_nothing_is_put_in_the_journal_s_place(
    scene: Scene,
) -> None:
    scene.journal.append([valid(3)])
    scene.cut(7)
    assert mend(scene.job, scene.journal, scene.disk) is None
    scene.journal.compact([])
    with pytest.raises(PermanentError, match=r"got no record.*run --resume job-1"):
        mend(scene.job, scene.journal, scene.disk)
