"""The initial values of a model, which the first worker writes as cut 0."""

from collections.abc import Mapping
from pathlib import Path

from paceline.runtime.checkpoint import cutfile
from paceline.runtime.data.work import Array
from paceline.runtime.ps.layout import initial_arrays
from paceline.wire import cut
from paceline.wire.schema import ModelSchema


def write_initial(
    directory: Path, schema: ModelSchema, dense: Mapping[str, Array], tables: Mapping[int, Array]
) -> None:
    """Write cut 0; the values are as in `initial_arrays`."""
    directory.mkdir(parents=True, exist_ok=True)
    arrays = initial_arrays(schema, dense, tables)
    digest, num_bytes = cutfile.write_save(directory, "initial.safetensors", arrays)
    manifest = cut.CutManifest(
        cut_no=0,
        epoch_no=0,
        position=0,
        step=0,
        committed=(),
        schema=schema,
        files={"initial.safetensors": digest},
        num_bytes=num_bytes,
    )
    cut.write_manifest(directory, manifest)
