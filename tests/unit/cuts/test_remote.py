"""Cuts at URLs: whatever is interrupted there, what seems to be a cut is one."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from msgspec.structs import replace

from paceline.base.errors import ConfigError, PermanentError, TransientError
from paceline.base.record_log import encode
from paceline.cli.fetching import _launched_s
from paceline.cuts import remote
from paceline.cuts.manifest import CutManifest, checksum, verify, write_file, write_manifest
from paceline.cuts.remote import Handover, RemoteCuts, pack_handover, unpack_handover
from paceline.cuts.store import LocalCuts
from paceline.master import uploads
from paceline.master.job_clock import MasterStarted
from paceline.master.uploads import Upload, Uploaded, Uploader, UploadFailed, Uploads
from paceline.protocol.nodes.node import JobEnded
from paceline.wire.events.base import Event
from paceline.wire.events.state import CutUploadedEvent, NotUploadedEvent, UploadFailedEvent
from paceline.wire.messages.base import CutRef
from paceline.wire.schema import ModelSchema
from paceline.wire.spec import JobSpec

HANDOVER = Handover(job_id="job-1", spec=JobSpec(script="/train.py"), journal=(b"\x80", b"\xff"))
PACKED = pack_handover(HANDOVER)


class Interrupted(MemoryFileSystem):
    """Storage of which a connection breaks: after so many bytes, or so many removals."""

    protocol = "interrupted"
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    bytes_left: float = float("inf")
    removals_left: float = float("inf")
    cachable = False

    def _take(self, data: bytes) -> bytes:
        taken = data[: int(min(len(data), max(0, Interrupted.bytes_left)))]
        Interrupted.bytes_left -= len(data)
        return taken

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        taken = self._take(value)
        super().pipe_file(path, taken, **kwargs)
        if len(taken) < len(value):
            raise ConnectionResetError("cut off")

    def rm_file(self, path: str) -> None:
        Interrupted.removals_left -= 1
        if Interrupted.removals_left < 0:
            raise ConnectionResetError("cut off")
        super().rm_file(path)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        for one in reversed(self.expand_path(path, recursive=recursive)):
            self.rmdir(one) if self.isdir(one) else self.rm_file(one)


fsspec.register_implementation("interrupted", Interrupted, clobber=True)


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    def reset() -> None:
        MemoryFileSystem.store.clear()
        MemoryFileSystem.pseudo_dirs[:] = [""]
        Interrupted.store.clear()
        Interrupted.pseudo_dirs[:] = [""]
        Interrupted.bytes_left = Interrupted.removals_left = float("inf")

    reset()
    yield
    reset()


def make_cut(root: Path, number: int, *files: bytes) -> Path:
    folder = root / f"{number:06d}"
    names = {f"worker-{k}-1.safetensors": image for k, image in enumerate(files)}
    for name, image in names.items():
        write_file(folder, name, image)
    manifest = CutManifest(
        cut_no=number,
        epoch_no=1,
        position=number,
        step=number,
        committed=(),
        schema=ModelSchema(),
        files={name: checksum(image) for name, image in names.items()},
        num_bytes=sum(map(len, files)),
    )
    write_manifest(folder, manifest)
    return folder


def fetched(cuts: RemoteCuts, number: int, into: Path) -> CutManifest:
    """Verified."""
    folder = into / f"{number:06d}"
    cuts.fetch_manifest(number, folder)
    cuts.fetch_files(number, folder)
    return verify(folder)


@pytest.mark.parametrize("scheme", ["file", "memory", "interrupted"])
def test_a_cut_comes_back_as_it_was(tmp_path: Path, scheme: str) -> None:
    cuts = RemoteCuts(f"{scheme}://{tmp_path}/far/away")
    assert cuts.numbers() == []
    cuts.probe()
    for number in (3, 12, 7):
        cuts.upload(number, make_cut(tmp_path, number, b"a" * number, b"b"), PACKED)
    assert cuts.numbers() == [12, 7, 3]
    assert fetched(cuts, 7, tmp_path / "back").step == 7
    back = (tmp_path / "back" / "000007" / "worker-0-1.safetensors").read_bytes()
    assert back == b"a" * 7
    assert cuts.handover(7) == HANDOVER
    cuts.trim(newest=12, keep=2)
    assert cuts.numbers() == [12, 7]
    assert cuts._folders() == [12, 7]


def test_an_upload_cut_off_at_any_byte_is_no_cut_and_harms_none(tmp_path: Path) -> None:
    cuts = RemoteCuts("interrupted://bucket/job")
    old, new = make_cut(tmp_path, 1, b"old"), make_cut(tmp_path, 2, b"12345", b"678")
    cuts.upload(1, old, b"known")
    end = sum(len(path.read_bytes()) for path in new.iterdir()) + len(b"known")
    # All of the data, and places all over the manifest, up to its last byte.
    for size in [*range(20), *range(20, end - 3, 11), *range(end - 3, end + 1)]:
        Interrupted.bytes_left = size
        with contextlib.suppress(TransientError):
            cuts.upload(2, new, b"known")
            break
        whole = []
        for number in cuts.numbers():
            with contextlib.suppress(PermanentError):
                whole.append(fetched(cuts, number, tmp_path / "back").cut_no)
        assert whole == [1], f"after {size} bytes"
    assert size == end
    assert fetched(cuts, 2, tmp_path / "back").cut_no == 2


def test_a_removal_cut_off_leaves_no_half_of_a_cut(tmp_path: Path) -> None:
    folders = [make_cut(tmp_path, number, b"old") for number in (1, 2)]
    for removals in range(5):
        Interrupted.removals_left = float("inf")
        cuts = RemoteCuts(f"interrupted://bucket/{removals}")
        for number, folder in enumerate(folders, 1):
            cuts.upload(number, folder, PACKED)
        Interrupted.removals_left = removals
        with contextlib.suppress(TransientError):
            cuts.trim(newest=2, keep=1)
        for number in cuts.numbers():
            assert fetched(cuts, number, tmp_path / "back").cut_no == number
        assert cuts.numbers() == ([2] if removals else [2, 1])


def test_what_is_there_already_is_not_copied_again_and_another_one_is_replaced(
    tmp_path: Path,
) -> None:
    cuts = RemoteCuts("interrupted://bucket")
    folder = make_cut(tmp_path, 4, b"first")
    cuts.upload(4, folder, PACKED)
    Interrupted.bytes_left = 0
    cuts.upload(4, folder, PACKED)
    Interrupted.bytes_left = float("inf")
    cuts.upload(4, make_cut(tmp_path / "again", 4, b"second life"), PACKED)
    assert fetched(cuts, 4, tmp_path / "back").num_bytes == len(b"second life")


def test_a_storage_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(remote, "PATIENCE_S", 0.05)
    monkeypatch.setattr(Interrupted, "ls", lambda *args, **kwargs: over.wait(30))
    try:
        made = RemoteCuts("interrupted://bucket")
        with pytest.raises(TransientError, match="cannot list: no answer for 0 s"):
            made.numbers()
        with pytest.raises(TransientError, match="cannot write: still no answer"):
            made.probe()  # what is left behind might undo it
    finally:
        over.set()


def test_what_moves_is_noticed_also_within_one_large_file() -> None:
    made = RemoteCuts("interrupted://bucket")
    made.answered_s = 0.0
    made._progress().relative_update(1)  # as fsspec does after each block
    assert made.answered_s > 0.0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3:/bucket", "expected a URL like s3://bucket/prefix"),
        ("s3://", "expected a URL like"),
        ("file://relative", "expected a URL like"),
        ("ftp://me:secret@host/cuts", "a ftp URL with a user or password in it"),
        ("nowhere://x", "scheme nowhere cannot be used .*Protocol not known"),
    ],
)
def test_urls_that_cannot_be(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RemoteCuts(url)


def test_a_scheme_whose_package_is_missing_is_named() -> None:
    fsspec.register_implementation(
        "lacking", "no_such_package.Files", clobber=True, errtxt="Install no_such_package"
    )
    with pytest.raises(ConfigError, match=r"Install no_such_package\); install its package"):
        RemoteCuts("lacking://bucket")


def test_a_damaged_handover_is_found() -> None:
    assert unpack_handover(PACKED, "here") == HANDOVER
    for damaged in (PACKED[:-1], b"", PACKED.replace(b"job-1", b"job-2")):
        with pytest.raises(PermanentError, match="checksum differs"):
            unpack_handover(damaged, "here")


def test_names_from_a_storage_lead_nowhere_else(tmp_path: Path) -> None:
    """They become paths on this machine."""
    with pytest.raises(PermanentError, match="of another version"):
        unpack_handover(pack_handover(replace(HANDOVER, job_id="../../etc")), "here")
    cuts = RemoteCuts("memory://bucket")
    manifest = verify(make_cut(tmp_path, 1, b"data"))
    folder = tmp_path / "evil"
    write_manifest(folder, replace(manifest, files={"../evil": checksum(b"")}))
    with pytest.raises(PermanentError, match="there is no file"):
        cuts.fetch_files(1, folder)


def heard(made: Uploader, last: type) -> list[Uploaded | UploadFailed]:
    """All news until one of this kind."""
    found: list[Uploaded | UploadFailed] = []
    for _ in range(10_000):
        found += made.news()
        if found and isinstance(found[-1], last):
            return found
        threading.Event().wait(0.002)
    raise AssertionError(found)


def test_a_storage_that_is_away_is_named_once_and_gets_the_cut_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "RETRY_S", 0.001)
    monkeypatch.setattr(uploads, "RETRY_MAX_S", 0.005)
    made = Uploader(RemoteCuts("interrupted://bucket"), keep=1)
    Interrupted.bytes_left = 0
    upload = Upload(3, make_cut(tmp_path, 3, b"data"), PACKED)
    made.begin(upload)
    (failed,) = heard(made, UploadFailed)
    assert "cut off" in str(failed)
    for _ in range(3):
        assert (made.busy, made.num_failed > 0) == (None, True)
        made.begin(upload)
        while made.busy is not None:
            assert list(made.news()) == []
    Interrupted.bytes_left = float("inf")
    made.begin(upload)
    assert heard(made, Uploaded) == [Uploaded(3)]
    assert (made.busy, made.done_no, made.num_failed) == (None, 3, 0)


def test_a_cut_that_is_gone_is_given_up(tmp_path: Path) -> None:
    made = Uploader(RemoteCuts("interrupted://bucket"), keep=1)
    folder = make_cut(tmp_path, 3, b"data")
    (folder / "worker-0-1.safetensors").unlink()
    made.begin(Upload(3, folder, PACKED))
    (gone,) = heard(made, Uploaded)
    assert isinstance(gone, Uploaded)
    assert "is not there" in gone.given_up
    assert made.busy is None


def test_old_cuts_that_cannot_be_removed_hold_up_no_new_one(tmp_path: Path) -> None:
    made = Uploader(RemoteCuts("interrupted://bucket"), keep=1)
    made.remote.upload(1, make_cut(tmp_path, 1, b"old"), PACKED)
    Interrupted.removals_left = 0
    made.begin(Upload(2, make_cut(tmp_path, 2, b"new"), PACKED))
    (done,) = heard(made, Uploaded)
    assert isinstance(done, Uploaded)
    assert "cut off" in done.trouble
    assert made.remote.numbers() == [2, 1]


class Trained:
    """A job's cuts: the newest one on disk."""

    uploading: int | None = None

    def __init__(self, folder: Path) -> None:
        self.cut = CutRef(cut_no=int(folder.name))
        self.folders = LocalCuts(folder.parent, folder.parent / "memory")

    def newest_stored(self) -> CutRef:
        return self.cut


class Lease:
    """Held to the end."""

    def __init__(self, taken_by: str = "") -> None:
        self.taken_by, self.given_back = taken_by, False

    def close(self, *, give_back: bool) -> None:
        self.given_back = give_back


def test_nothing_is_copied_to_a_url_that_another_run_of_the_job_has_taken(tmp_path: Path) -> None:
    told: list[Event] = []
    failed: list[str] = []
    trained: Any = Trained(make_cut(tmp_path, 5, b"data"))
    lease: Any = Lease(taken_by="host-b")
    uploader = Uploader(RemoteCuts("interrupted://bucket"), keep=1)
    made = Uploads(uploader, trained, lambda _: HANDOVER, told.append, lease, failed.append)
    made.tick()
    assert uploader.busy is None
    assert failed[0].startswith("interrupted://bucket: another run of this job, on host-b, writes")
    asyncio.run(made.finish(lambda: None, lambda: False))
    assert RemoteCuts("interrupted://bucket").numbers() == []
    assert lease.given_back


def ended(folder: Path, *, hurried: bool = False) -> list[Event]:
    """What is told from the first look at a job's last cut to the job's end."""
    told: list[Event] = []
    trained: Any = Trained(folder)
    uploader = Uploader(RemoteCuts("interrupted://bucket"), keep=1)
    lease: Any = Lease()
    failed: list[str] = []
    made = Uploads(uploader, trained, lambda _: HANDOVER, told.append, lease, failed.append)
    asyncio.run(made.finish(lambda: None, lambda: hurried))
    assert trained.uploading == uploader.busy, "what is being copied stays on disk, and no other"
    return told


def test_a_job_s_last_cut_is_waited_for_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "LOOK_S", 0.005)
    monkeypatch.setattr(uploads, "AWAY_S", 0.02)
    for wait in ("RETRY_S", "RETRY_MAX_S"):
        monkeypatch.setattr(uploads, wait, 10_000.0)
    folder = make_cut(tmp_path, 5, b"data")
    Interrupted.bytes_left = 0
    failed, lost = ended(folder)
    assert isinstance(failed, UploadFailedEvent)
    assert "cut off" in failed.reason
    assert lost == NotUploadedEvent(cut_no=5)
    assert ended(folder, hurried=True)[-1] == NotUploadedEvent(cut_no=5)
    Interrupted.bytes_left = float("inf")
    assert ended(folder)[-1] == CutUploadedEvent(cut_no=5)
    assert RemoteCuts("interrupted://bucket").handover(5) == HANDOVER


@pytest.mark.parametrize(
    ("launched_s", "journal", "found"),
    [
        (7.0, (encode(MasterStarted(started_s=8.0)),), 7.0),
        (None, (encode(JobEnded()), encode(MasterStarted(started_s=8.0))), 8.0),
        (None, (encode(JobEnded()),), None),
        (None, HANDOVER.journal, None),
    ],
)
def test_the_time_of_a_job_counts_on_on_another_machine(
    launched_s: float | None, journal: tuple[bytes, ...], found: float | None
) -> None:
    """Also by the handover of an older version, whose journal alone says when it began."""
    assert _launched_s(replace(HANDOVER, launched_s=launched_s, journal=journal)) == found
