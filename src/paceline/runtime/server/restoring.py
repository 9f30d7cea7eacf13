"""A cut of servers read into a fresh store. Never imports torch."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from paceline.base.errors import PermanentError, TransientError
from paceline.base.samples import SampleSet
from paceline.cuts.manifest import CutManifest, look_at, map_file, read_manifest
from paceline.runtime.checkpoint.cutfile import read_file, unpack
from paceline.runtime.server.store import Store
from paceline.runtime.state.arrays import Array
from paceline.wire.messages.node import Restore


def read_saves(store: Store, manifest: CutManifest, *places: Path) -> Iterator[Mapping[str, Array]]:
    """The verified arrays of each file of a cut, for `Store.load` of this very store.

    Of a share of the same buckets what the store has room for is read into it, so that loading it
    copies nothing; the rows of tables that grow are not. A store that met an error is of no use.

    Raises:
        PermanentError: a file is missing, truncated or damaged; names it.
    """
    for name, expected in manifest.files.items():
        # Not verified yet: reading it does that.
        buckets = look_at(name, unpack, *places).get("buckets")
        if buckets is not None and buckets.tolist() == list(store.buckets):
            saved = read_file(name, expected, *places, into=store.save())
            if saved["buckets"].tolist() != list(store.buckets):
                raise PermanentError(f"{name}: copies of it hold different buckets")
            yield saved
        else:
            yield unpack(map_file(name, expected, *places))


def manifest_of(restore: Restore, *places: Path) -> CutManifest:
    """The manifest of the cut that an epoch begins with.

    Raises:
        TransientError: as `load_share`.
    """
    try:
        return read_manifest(*places)
    except PermanentError as error:
        raise _cannot_load(restore, error) from error


def load_share(
    restore: Restore, manifest: CutManifest, me: int, *places: Path
) -> tuple[Store, SampleSet]:
    """A store of server number ``me`` as the cut has it, and the samples in it.

    Raises:
        TransientError: the cut is damaged. The master reads a cut before an epoch starts from it
            again, and finds another.
    """
    store = Store(manifest.schema, restore.map.owners, me)
    try:
        saves = list(read_saves(store, manifest, *places))
    except PermanentError as error:
        raise _cannot_load(restore, error) from error
    store.load(saves)
    return store, SampleSet(manifest.committed)


def _cannot_load(restore: Restore, error: PermanentError) -> TransientError:
    return TransientError(f"cut {restore.cut.cut_no} cannot be loaded: {error}")
