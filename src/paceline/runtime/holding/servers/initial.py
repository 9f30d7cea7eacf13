"""The initial values of a model, which the first worker writes as cut 0."""

from collections.abc import Mapping
from pathlib import Path

from paceline.base.disk import describe, is_refusal
from paceline.base.numbering import NO_CUT, NO_EPOCH, START
from paceline.cuts import manifest as cut
from paceline.runtime.checkpoint import cutfile
from paceline.runtime.data.work import Array
from paceline.runtime.holding.servers.port import Initial
from paceline.runtime.layout import initial_arrays
from paceline.runtime.process import Process
from paceline.wire.messages.node import CutDelayed, InitialWritten
from paceline.wire.schema import ModelSchema


class InitialWriter:
    """Writes cut 0 when the master asks for it, as often as it asks."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.values: Initial | None = None
        """Makes them; None: they are written already."""

    def write(self, schema: ModelSchema) -> InitialWritten | CutDelayed:
        """Write cut 0, or say why the disk refuses it now; the master then asks again."""
        inc, directory = self._process.inc, self._process.cuts.disk.folder(0)
        if self.values is not None:
            try:
                _write(directory, schema, initial_arrays(schema, *self.values()))
            except OSError as error:
                if not is_refusal(error):
                    raise
                why = f"the model as it was built is not stored: {describe(error, directory)}"
                return CutDelayed(inc=inc, cut_no=NO_CUT, reason=why)
        self.values = None
        return InitialWritten(inc=inc)


def _write(directory: Path, schema: ModelSchema, arrays: Mapping[str, Array]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    digest, num_bytes = cutfile.write_save(directory, "initial.safetensors", arrays)
    manifest = cut.CutManifest(
        cut_no=NO_CUT,
        epoch_no=NO_EPOCH,
        position=0,
        step=START,
        committed=(),
        schema=schema,
        files={"initial.safetensors": digest},
        num_bytes=num_bytes,
    )
    cut.write_manifest(directory, manifest)
