"""Where the processes of a node find the files of cuts: on their machine, or served by others.

On the master's machine all lies in folders. A node of another machine has folders of its own, with
what it has copied itself and what it has fetched; what they lack is fetched from the node that made
it, or else from the master. What must outlive such a node is given to the master.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from paceline.base.errors import PermanentError, TransientError
from paceline.base.files import write_file
from paceline.base.jobdir import JobDir
from paceline.base.numbering import NO_EPOCH, EpochNo
from paceline.cuts import manifest as cut
from paceline.cuts.store import CutStore, LocalCuts, fetch, results_of
from paceline.wire.messages.agent import FileServers
from paceline.wire.messages.base import CutRef
from paceline.wire.spec import JobSpec

if TYPE_CHECKING:  # most agents need no data plane, which takes its time to import
    from paceline.cuts.serving import FileServer

PEER_PATIENCE_S = 5.0
"""A node that does not answer for so long is gone; the master has what it made."""

_log = logging.getLogger(__name__)


def keep_servers(job: JobDir, servers: FileServers) -> None:
    """Write down, for the processes of a node, what the master says of who serves files."""
    write_file(job.file_servers, msgspec.json.encode(servers))


def serve_files(job: JobDir, node: str, spec: JobSpec) -> "FileServer":
    """Serve what a joined node has, to all that know the job's secret."""
    # With ZMQ, as all that goes over the data plane here: see above.
    from paceline.cuts.serving import FileServer
    from paceline.wire.data_plane import bind_address

    bind = bind_address(spec.data_plane, spec.listen, job.run_dir, f"{node}-files")
    return FileServer(bind, job.secret(), job, cuts_of(job, spec), takes=False)


def cuts_of(job: JobDir, spec: JobSpec) -> LocalCuts:
    """Return the cuts of a job as a node's processes reach them."""
    return JoinedCuts(job) if job.is_joined else LocalCuts.of(job, spec)


def evaluated(job: JobDir, epoch_no: EpochNo) -> CutStore:
    """Return what `job.evaluate` computed in an epoch, by feed."""
    return _master(job, epoch_no) if job.is_joined else results_of(job, epoch_no)


class JoinedCuts(LocalCuts):
    """The cuts of a job whose master is on another machine: one cut at a time is fetched here."""

    def __init__(self, job: JobDir) -> None:
        super().__init__(job.cuts, job.memory)
        self._job = job
        self._master = _master(job)

    @property
    def durable(self) -> CutStore:
        """The cuts on the master's machine."""
        return self._master

    def places(self, ref: CutRef) -> tuple[Path, ...]:
        """Return the places of a cut; fetch what is missing.

        Raises:
            PermanentError: a file is not there, or all copies are damaged.
            TransientError: nobody who has it answers.
            OSError: there is no room for it here.
        """
        number = ref.cut_no
        for other in self.disk.numbers():
            if other != number:
                self.disk.delete(other)
        here = self.disk.folder(number), self.memory.folder(number)
        manifest = self._fetch_manifest(ref)
        for name, checksum in manifest.files.items():
            if not _is_whole(name, checksum, *here):
                self._fetch(number, name, checksum)
        return here

    def _fetch_manifest(self, ref: CutRef) -> cut.CutManifest:
        # Always that of the master: what was fetched before may be another cut of this number.
        sealed = b"".join(self._master.get(ref.cut_no, cut.MANIFEST))
        folder = self.disk.folder(ref.cut_no)
        cut.write_file(folder, cut.MANIFEST, sealed)
        manifest = cut.read_manifest(folder)
        if ref.epoch_no not in (0, manifest.epoch_no):
            raise PermanentError(f"{folder}: another cut of this number; use an older cut")
        return manifest

    def _fetch(self, number: int, name: str, checksum: str) -> None:
        """Get a file from the node that made it, or else from the master."""
        maker = name.rpartition("-")[0]
        peer = _servers(self._job).nodes.get(maker, "")
        if peer:
            from paceline.cuts.distant import DistantStore  # with ZMQ

            store = DistantStore(lambda: peer, self._job.secret(), patience_s=PEER_PATIENCE_S)
            try:
                fetch(store, number, name, checksum, self.disk.folder(number))
            except (PermanentError, TransientError) as error:
                _log.info("not_from_peer node=%s file=%s reason=%s", maker, name, error)
            else:
                return
        fetch(self._master, number, name, checksum, self.disk.folder(number))

    def forget_memory(self, keep: int) -> None:
        """Free what this node has in memory of all cuts but this one."""
        for number in self.memory.numbers():
            if number != keep:
                self.memory.delete(number)


def files_of_master(job: JobDir) -> str:
    """Return where the master serves files, for a node of another machine; empty: not known."""
    return _servers(job).master if job.is_joined else ""


def _servers(job: JobDir) -> FileServers:
    return msgspec.json.decode(job.file_servers.read_bytes(), type=FileServers)


def _master(job: JobDir, epoch_no: EpochNo = NO_EPOCH) -> CutStore:
    from paceline.cuts.distant import DistantStore  # with ZMQ

    return DistantStore(lambda: _servers(job).master, job.secret(), epoch_no)


def _is_whole(name: str, checksum: str, *places: Path) -> bool:
    try:
        cut.map_file(name, checksum, *places).close()
    except PermanentError:
        return False
    return True
