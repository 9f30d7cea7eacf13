"""The initial values of a model, which the first worker writes: the file of cut 0."""

from paceline.base.disk import describe, is_refusal
from paceline.base.errors import TransientError
from paceline.base.numbering import NO_CUT
from paceline.cuts.manifest import Checksum
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.holding.servers.port import Initial
from paceline.runtime.process.process import Process
from paceline.runtime.state.layout import initial_arrays
from paceline.wire.messages.node import CutDelayed, InitialWritten
from paceline.wire.schema import ModelSchema

FILE = "initial.safetensors"


class InitialWriter:
    """Writes the file when the master asks for it; asked again, it says so again."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.values: Initial | None = None
        """Makes them; None: they are not needed."""
        self._written: InitialWritten | None = None

    def write(self, schema: ModelSchema) -> InitialWritten | CutDelayed | None:
        """Write it, or say why the disk refuses it now; the master then asks again.

        None: there is nothing to write, or the store does not answer now.
        """
        if self._written is None and self.values is not None:
            inc, store = self._process.inc, self._process.cuts.durable
            image = cutfile.image_of(initial_arrays(schema, *self.values()))
            digest = Checksum()
            try:
                store.put(NO_CUT, FILE, memoryview(image), digest)
            except TransientError:
                return None
            except OSError as error:
                if not is_refusal(error):
                    raise
                where = describe(error, store.where(NO_CUT))
                why = f"the model as it was built is not stored: {where}"
                return CutDelayed(inc=inc, cut_no=NO_CUT, reason=why)
            self._written = InitialWritten(
                inc=inc, file=FILE, checksum=str(digest), num_bytes=len(image)
            )
        return self._written
