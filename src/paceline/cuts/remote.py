"""Cuts at an fsspec URL: ``URL/000007/…`` with the files of a cut, its manifest written last.

Beside them lies what the master knew of the job (`Handover`), so that another machine can go on
from there. Nothing here is atomic but what the storage makes so: what was interrupted has no
manifest, or one whose checksum differs, and files are compared with the manifest's checksums where
they are read.

A storage may also not answer at all. So each operation runs in a thread that is left behind then;
as long as that one is under way no other begins, which it might undo.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from paceline.base.errors import ConfigError, PermanentError, TransientError
from paceline.cuts.manifest import MANIFEST, Checksum, checksum, read_manifest, verify, write_file
from paceline.cuts.store import PIECE_BYTES
from paceline.wire.spec import JobSpec

HANDOVER = "handover.json"
PROBE = ".paceline"
"""File that is written and removed before a job starts, to try the storage."""
PATIENCE_S = 60.0
"""Seconds for an operation; its data has more, at `LEAST_BYTES_PER_S`."""
LEAST_BYTES_PER_S = 100_000

_URL = re.compile(r"(?!(file|local)://[^/])[a-z][a-z0-9+.-]*:///?[^/].*")
"""fsspec takes ``file://name`` for a folder of wherever it is called."""

T = TypeVar("T")


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine needs, beside a cut, to go on with the job."""

    job_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
    spec: JobSpec
    """Without the values of its environment variables, which may be secrets."""
    launched_s: float | None = None
    """Unix time of its launch; None: ``journal`` says when its first master started."""
    journal: tuple[bytes, ...]
    """Records of the master: of a job that has ended, with this cut as the only one."""


def pack_handover(handover: Handover) -> bytes:
    """Pack the hand-over as a file: a checksum, and JSON."""
    text = msgspec.json.encode(handover)
    return checksum(text).encode() + b"\n" + text


def unpack_handover(image: bytes, where: str) -> Handover:
    """The reverse.

    Raises:
        PermanentError: it is damaged, or of another version.
    """
    told, _, text = image.partition(b"\n")
    if told != checksum(text).encode():
        raise PermanentError(f"{where}: checksum differs, the file is damaged; use an older cut")
    try:
        return msgspec.json.decode(text, type=Handover)
    except msgspec.DecodeError as error:
        raise PermanentError(f"{where}: of another version of paceline ({error})") from error


class RemoteCuts:
    """All cuts of one job at a URL."""

    def __init__(self, url: str) -> None:
        """Look up the URL's scheme; does not connect.

        Raises:
            ConfigError: no URL, or its scheme is not known, or the package for it is missing.
        """
        if not _URL.fullmatch(url):
            raise ConfigError(
                f"got {url!r}, expected a URL like s3://bucket/prefix or file:///folder"
            )
        scheme, _, rest = url.partition("://")
        if "@" in rest.partition("/")[0]:
            raise ConfigError(
                f"got a {scheme} URL with a user or password in it, which would be written to logs "
                "and beside the cuts; set them where fsspec looks for them"
            )
        # 70 ms, for those who have a URL.
        from fsspec import get_filesystem_class

        self.url = url.rstrip("/")
        self.answered_s = time.monotonic()
        """When the storage last did anything that it was asked for, or a part of it."""
        #: An operation that took too long.
        self._left_behind: Future[Any] | None = None
        try:
            kind = get_filesystem_class(scheme)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"got {url!r}, whose scheme {scheme} cannot be used ({error}); install its package "
                "where the job runs, or name another"
            ) from error
        self._root = kind._strip_protocol(self.url)

    @cached_property
    def _fs(self) -> Any:
        """Some look for credentials when they are made, which takes its time."""
        from fsspec.core import url_to_fs  # as above: for those who have a URL

        return url_to_fs(self.url)[0]

    # ------------------------------------------------------------------ what is there

    def numbers(self) -> list[int]:
        """Return the numbers of all cuts that have a manifest, newest first.

        Raises:
            TransientError: the storage does not answer, or refuses.
        """

        def look() -> list[int]:
            return [number for number in self._folders() if MANIFEST in self._names(number)]

        return self._do("list", look)

    def _folders(self) -> list[int]:
        names = self._list(self._root)
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    def _names(self, number: int) -> set[str]:
        """Return the names of the files of a cut."""
        return self._list(self._path(number))

    def _list(self, path: str) -> set[str]:
        # Not `exists`, which takes any error for a no.
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(path, detail=False)
        except FileNotFoundError:
            return set()
        return {one.rstrip("/").rpartition("/")[2] for one in found}

    def _path(self, number: int, name: str = "") -> str:
        return f"{self._root}/{number:06d}/{name}".rstrip("/")

    def where(self, number: int) -> str:
        """The URL of a cut, for people."""
        return f"{self.url}/{number:06d}"

    # ------------------------------------------------------------------ from there

    def handover(self, number: int) -> Handover:
        """What is known of the job at a cut.

        Raises:
            PermanentError: it is not there, or damaged.
            TransientError: see `numbers`.
        """
        self._expect(number, [HANDOVER])
        image = self._do("read", lambda: self._fs.cat_file(self._path(number, HANDOVER)))
        return unpack_handover(image, f"{self.where(number)}/{HANDOVER}")

    def _expect(self, number: int, names: Iterable[str]) -> None:
        known = self._do("list", lambda: self._names(number))
        for name in names:
            if name not in known:
                raise PermanentError(f"{self.where(number)}: there is no file {name!r}")

    def fetch_manifest(self, number: int, folder: Path) -> float | None:
        """Copy a cut's manifest into a folder: damaged if it is so there. Raises as `numbers`.

        Returns:
            Unix time at which it was written, where the storage knows.
        """
        path = self._path(number, MANIFEST)
        write_file(folder, MANIFEST, self._do("read", lambda: self._fs.cat_file(path)))

        def look() -> float | None:
            with suppress(NotImplementedError, KeyError):
                return float(self._fs.modified(path).timestamp())
            return None

        return self._do("look", look)

    def fetch_files(self, number: int, folder: Path) -> None:
        """Copy the files that the manifest in ``folder`` names; they are not verified.

        Raises:
            PermanentError: the manifest is damaged, or a file is missing.
            TransientError: see `numbers`.
        """
        manifest = read_manifest(folder)
        self._expect(number, manifest.files)
        for name in manifest.files:
            source, target = self._path(number, name), str(folder / name)
            size = self._do("look", partial(self._fs.size, source))
            act = partial(self._fs.get_file, source, target, callback=self._progress())
            self._do(f"fetch {name}", act, size or manifest.num_bytes)

    # ------------------------------------------------------------------ to there

    def probe(self) -> None:
        """Find out whether anything can be written there. Raises as `numbers`."""
        path = f"{self._root}/{PROBE}"

        def write() -> None:
            self._fs.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(path, b"")
            self._fs.rm_file(path)

        self._do("write", write)

    def upload(self, number: int, folder: Path, handover: bytes) -> None:
        """Copy a cut from a folder, unless it is there.

        Raises:
            PermanentError: it is not in the folder.
            TransientError: see `numbers`; nothing of it counts.
        """
        manifest = verify(folder, contents=False)
        sealed = (folder / MANIFEST).read_bytes()
        if self._do("look", lambda: self._is(number, sealed)):
            return
        self.delete(number)
        self._do("make", lambda: self._fs.makedirs(self._path(number), exist_ok=True))
        for name in manifest.files:
            source, target = folder / name, self._path(number, name)
            act = partial(self._fs.put_file, str(source), target, callback=self._progress())
            self._do(f"store {name}", act, source.stat().st_size)
        for name, image in ((HANDOVER, handover), (MANIFEST, sealed)):
            act = partial(self._fs.pipe_file, self._path(number, name), image)
            self._do(f"store {name}", act, len(image))

    def _is(self, number: int, sealed: bytes) -> bool:
        path = self._path(number, MANIFEST)
        return MANIFEST in self._names(number) and self._fs.cat_file(path) == sealed

    def read_note(self, name: str) -> bytes | None:
        """Read a small file beside the cuts; None: there is none. Raises as `numbers`."""

        def read() -> bytes | None:
            with suppress(FileNotFoundError):
                return bytes(self._fs.cat_file(f"{self._root}/{name}"))
            return None

        return self._do(f"read {name}", read)

    def write_note(self, name: str, image: bytes) -> None:
        """Write it. Raises as `numbers`."""

        def write() -> None:
            self._fs.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(f"{self._root}/{name}", image)

        self._do(f"store {name}", write)

    def remove_note(self, name: str) -> None:
        """Remove it, if it is there. Raises as `numbers`."""

        def remove() -> None:
            with suppress(FileNotFoundError):
                self._fs.rm_file(f"{self._root}/{name}")

        self._do(f"remove {name}", remove)

    def trim(self, newest: int, keep: int) -> None:
        """Remove what is older than the newest few cuts; what has no manifest is no cut.

        Raises:
            TransientError: see `numbers`.
        """
        kept = [number for number in self.numbers() if number <= newest][:keep]
        for number in self._do("list", self._folders):
            if number < newest and number not in kept:
                self.delete(number)

    def _remove(self, number: int) -> None:
        # First what makes it a cut: it must not seem whole when half of it is gone.
        if MANIFEST in self._names(number):
            self._fs.rm_file(self._path(number, MANIFEST))
        with suppress(FileNotFoundError):
            self._fs.rm(self._path(number), recursive=True)

    # ------------------------------------------------------------------ file by file

    def put(
        self, number: int, name: str, image: memoryview, digest: Checksum | None = None
    ) -> None:
        """Put a file, as whole as the storage makes one operation."""
        if digest is not None:
            digest.add(image)
        path = self._path(number, name)

        def write() -> None:
            self._fs.makedirs(self._path(number), exist_ok=True)
            self._fs.pipe_file(path, bytes(image))

        self._do(f"store {name}", write, len(image))

    def get(self, number: int, name: str) -> Iterator[memoryview]:
        self._expect(number, [name])
        path, at = self._path(number, name), 0
        while True:
            read = partial(self._fs.cat_file, path, start=at, end=at + PIECE_BYTES)
            piece = self._do(f"fetch {name}", read, PIECE_BYTES)
            if piece:
                yield memoryview(piece)
            if len(piece) < PIECE_BYTES:
                return
            at += len(piece)

    def files(self, number: int) -> dict[str, int]:
        def look() -> dict[str, int]:
            return {name: self._fs.size(self._path(number, name)) for name in self._names(number)}

        return self._do("list", look)

    def delete(self, number: int) -> None:
        self._do("remove", partial(self._remove, number))

    # ------------------------------------------------------------------ in threads

    def _progress(self) -> Any:
        """What fsspec calls while bytes move."""
        from fsspec.callbacks import Callback  # as above

        def note(*_: object, **__: object) -> None:
            self.answered_s = time.monotonic()

        return Callback(hooks={"answered": note})

    def _do(self, what: str, act: Callable[[], T], num_bytes: int = 0) -> T:
        """Raises TransientError: it failed, or took too long."""
        if self._left_behind is not None and not self._left_behind.done():
            raise TransientError(f"{self.url}: cannot {what}: still no answer to what came before")
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(act())
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                done.set_exception(error)

        threading.Thread(target=run, name="paceline-remote", daemon=True).start()
        wait_s = PATIENCE_S + num_bytes / LEAST_BYTES_PER_S
        try:
            found = done.result(wait_s)
        except Exception as error:
            late = isinstance(error, TimeoutError) and not done.done()
            self._left_behind = done if late else None
            why = f"no answer for {wait_s:.0f} s" if late else f"{type(error).__name__}: {error}"
            raise TransientError(f"{self.url}: cannot {what}: {why}") from error
        self.answered_s = time.monotonic()
        return found
