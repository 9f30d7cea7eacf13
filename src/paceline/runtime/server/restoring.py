"""A cut of servers read into a fresh store. Never imports torch."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from paceline.base.errors import PermanentError
from paceline.cuts.manifest import CutManifest, look_at, map_file
from paceline.runtime.checkpoint.cutfile import read_file, unpack
from paceline.runtime.kernels import Array
from paceline.runtime.server.store import Store


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
