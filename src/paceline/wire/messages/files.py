"""Files of a job between machines: who serves them asks nobody who has not the job's secret.

With ``epoch_no`` 0 the files are those of cuts, by the numbers of these; else what `job.evaluate`
computed in that epoch, by feed. Each request is answered by one message and may be repeated;
``ticket`` is the asker's, and comes back.
"""

from paceline.base.numbering import NO_EPOCH, EpochNo
from paceline.wire.messages.base import Message


class FileMessage(Message, frozen=True, kw_only=True):
    """Message about a file of a cut."""

    ticket: int
    epoch_no: EpochNo = NO_EPOCH


class AskFile(FileMessage, frozen=True, kw_only=True):
    """Ask for the bytes of a file from ``offset`` on; answer: FilePiece."""

    number: int
    name: str
    offset: int


class FilePiece(FileMessage, frozen=True, kw_only=True):
    """Some bytes of a file of ``num_bytes``, as a frame; ``error``: there is no such file."""

    offset: int = 0
    num_bytes: int = 0
    error: str = ""


class AskFiles(FileMessage, frozen=True, kw_only=True):
    """Ask which files there are; answer: FilesAre."""

    number: int


class FilesAre(FileMessage, frozen=True, kw_only=True):
    """The names and sizes, in bytes, of the files of a number."""

    files: tuple[tuple[str, int], ...] = ()


class GiveFile(FileMessage, frozen=True, kw_only=True):
    """Store bytes (a frame) of a file of a cut, from ``offset`` on; answer: FileTaken.

    ``checksum``: of the whole file, with its last bytes. The file is there, and durable, once the
    answer to them has come. ``memory_of``: in the memory there, as a second copy of this node; what
    is given so is not durable.
    """

    number: int
    name: str
    offset: int
    num_bytes: int
    checksum: str = ""
    memory_of: str = ""


class DropFiles(FileMessage, frozen=True, kw_only=True):
    """Remove the files of a cut that never counted; answer: FileTaken."""

    number: int


class FileTaken(FileMessage, frozen=True, kw_only=True):
    """So many bytes of the file have been taken, one after the other.

    ``error``: why not. ``errno``: of the disk that refuses them, 0: it is not the disk. ``again``:
    the file has to be given again from its beginning.
    """

    offset: int = 0
    done: bool = False
    error: str = ""
    errno: int = 0
    again: bool = False
