"""The cuts that a command is about: of a job, or in folders that were copied elsewhere."""

import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from paceline.base.errors import ConfigError, PacelineError, PermanentError
from paceline.base.jobdir import JobDir
from paceline.cuts.manifest import MANIFEST, CutManifest, read_manifest
from paceline.cuts.remote import RemoteCuts
from paceline.wire import spec as specs


class FoundCut(msgspec.Struct, frozen=True, kw_only=True):
    """One folder of a cut, whole or not."""

    number: int
    places: tuple[Path, ...]
    """Directories of the cut: a cut that is not wholly on disk has one in memory, too. The last is
    on disk."""
    manifest: CutManifest | None
    sealed: bool
    """Whether a manifest is there, readable or not: it was whole once."""
    written_s: float
    """Unix time of the manifest; without one, of the folder."""
    error: str = ""
    """Reason why there is no manifest."""
    url: str = ""
    """URL of the cut, if it is at one: its folder here is a copy, without its files until they are
    fetched (`Cuts.fetched`)."""

    @property
    def where(self) -> str:
        """The place, for people."""
        return self.url or str(self.places[-1])

    @property
    def in_memory(self) -> bool:
        """Whether the cut is not wholly on disk."""
        return len(self.places) > 1

    @property
    def gone(self) -> bool:
        """Whether it was removed meanwhile: a running job keeps its newest cuts only."""
        return not any(place.exists() for place in self.places)

    def readable(self) -> CutManifest:
        """Return the manifest.

        Raises:
            PermanentError: there is none that can be read.
        """
        if self.manifest is None:
            raise PermanentError(f"cut {self.number}: {self.error}")
        return self.manifest


class FoundCuts(msgspec.Struct, frozen=True, kw_only=True):
    """Cuts that were found."""

    where: str
    """Name of the job or folder that was searched, for people."""
    folder: Path
    job: JobDir | None
    cuts: tuple[FoundCut, ...]
    """Newest first."""
    remote: RemoteCuts | None = None
    """Remote place of which all this is a copy, in a folder that lasts as long as this process."""

    @property
    def looked(self) -> str:
        """The place that was searched for cuts, as the end of a sentence."""
        return f" (looked in {self.folder})" if self.remote is None else ""

    def fetched(self, cut: FoundCut) -> FoundCut:
        """Return the same cut with its files at hand; they are not verified.

        Raises:
            PermanentError: they are not all there.
            TransientError: the storage does not answer, or refuses.
        """
        if self.remote is not None and cut.manifest is not None:
            self.remote.fetch_files(cut.number, cut.places[0])
        return cut

    def one(self, number: int | None) -> FoundCut:
        """Cut ``number``; None: the newest that is sealed, if any is.

        Raises:
            ConfigError: no such cut; the message lists what there is.
        """
        if not self.cuts:
            raise ConfigError(f"{self.where} has no cut{self.looked}")
        if number is None:
            return next((cut for cut in self.cuts if cut.sealed), self.cuts[0])
        for cut in self.cuts:
            if cut.number == number:
                return cut
        known = ", ".join(str(cut.number) for cut in self.cuts)
        raise ConfigError(f"--cut: {self.where} has no cut {number}; it has {known}")


def find_cuts(name: str | None) -> FoundCuts:
    """The cuts of a job (by id, its beginning, or a path; None: the newest), in a folder, at a URL.

    A folder holds cuts, or is one.

    Raises:
        ConfigError: neither job nor folder; or the folder holds no cut.
        TransientError: the storage of a URL does not answer, or refuses.
    """
    path = Path(name or "")
    if name and "://" in name:
        return _at_url(name)
    if name and ("/" in name or name in (".", "..")):
        return _at(path)
    try:
        return _of_job(JobDir.find(name))
    except ConfigError:
        if name and path.is_dir():
            return _at(path)
        raise


def _at_url(url: str) -> FoundCuts:
    remote, scratch = RemoteCuts(url), Path(tempfile.mkdtemp(prefix="paceline-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    cuts = {}
    for number in remote.numbers():
        folder = scratch / f"{number:06d}"
        written_s = remote.fetch_manifest(number, folder)
        if written_s is not None:
            os.utime(folder / MANIFEST, (written_s, written_s))
        cut = msgspec.structs.replace(_read_one((folder,)), url=remote.where(number))
        cuts[number] = cut
    return FoundCuts(
        where=url,
        folder=scratch,
        job=None,
        cuts=_newest_first(cuts),
        remote=remote,
    )


def _at(path: Path) -> FoundCuts:
    if (path / "job.json").exists():
        return _of_job(JobDir(path.absolute()))
    if not path.is_dir():
        raise ConfigError(f"{path}: no such folder; give a job's id, its directory, or a cut's")
    path = path.absolute()
    cuts = _below(path)
    if not cuts and ((path / MANIFEST).exists() or any(path.glob("*.safetensors"))):
        cuts = _read([(path,)])
    if not cuts:
        raise ConfigError(
            f"{path} holds no cut: it is no job's directory, has no folder 000001, 000002, …, and "
            f"no {MANIFEST} of a cut"
        )
    return FoundCuts(where=str(path), folder=path, job=None, cuts=_newest_first(cuts))


def _of_job(job: JobDir) -> FoundCuts:
    try:
        own = specs.load(job.spec).checkpoint.folder
    except PacelineError:
        own = None  # of another version: where cuts are by default
    folder = Path(own or job.cuts)
    cuts = _below(folder)
    unstored = [
        (memory, folder / memory.name)
        for memory in _numbered(job.memory)
        if (memory / MANIFEST).exists()
        and not ((known := cuts.get(int(memory.name))) and known.sealed)
    ]
    cuts |= _read(unstored)
    where = f"job {job.job_id}"
    return FoundCuts(where=where, folder=folder, job=job, cuts=_newest_first(cuts))


def _below(folder: Path) -> dict[int, FoundCut]:
    return _read([(path,) for path in _numbered(folder)])


def _numbered(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() else ()
    return [path for path in found if path.name.isdecimal() and path.is_dir()]


def _read(found: Iterable[tuple[Path, ...]]) -> dict[int, FoundCut]:
    """Read the cuts in these places, by number; a cut that vanishes meanwhile is left out."""
    cuts = {}
    for places in found:
        with contextlib.suppress(FileNotFoundError):
            cut = _read_one(places)
            cuts[cut.number] = cut
    return cuts


def _read_one(places: tuple[Path, ...]) -> FoundCut:
    folder, manifest = places[0], places[0] / MANIFEST
    sealed = manifest.exists()
    written_s = (manifest if sealed else folder).stat().st_mtime
    number = int(folder.name) if folder.name.isdecimal() else 0
    known, error = None, ""
    try:
        known = read_manifest(folder)
        # A cut that was copied elsewhere may lie in a folder of any name.
        number = known.cut_no
    except PermanentError as damage:
        error = str(damage)
    return FoundCut(
        number=number,
        places=places,
        manifest=known,
        sealed=sealed,
        written_s=written_s,
        error=error,
    )


def _newest_first(cuts: dict[int, FoundCut]) -> tuple[FoundCut, ...]:
    return tuple(sorted(cuts.values(), key=lambda cut: cut.number, reverse=True))
