"""Cut files: packed once, readable by safetensors, refused when a byte is wrong."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from paceline.base.errors import PermanentError
from paceline.base.samples import Span
from paceline.cuts import manifest as cut
from paceline.runtime.checkpoint import cutfile
from paceline.wire.schema import ModelSchema, OptimizerGroup, Table

SAVED = {
    "buckets": np.arange(3),
    "table.weight.value": np.linspace(0, 1, 35, dtype="f4").reshape(7, 5),
    "table.weight.row_step": np.arange(7, dtype="i4")[:, None],
    "dense.float64.value": np.linspace(-1, 1, 9),
    "table.none.key": np.zeros(0, np.int64),
}
SCHEMA = ModelSchema(
    tables=(Table(name="weight", dim=5, dtype="float32", group=0, num_rows=7),),
    groups=(OptimizerGroup(kind="adam", hyper={"eps": 1e-9}),),
)


def write_cut(directory: Path) -> cut.CutManifest:
    sealed, num_bytes = cutfile.write_save(directory, "server0.safetensors", SAVED)
    manifest = cut.CutManifest(
        cut_no=3,
        epoch_no=2,
        position=70,
        step=40,
        committed=(Span(0, 0, 9), Span(1, 4, 5)),
        schema=SCHEMA,
        files={"server0.safetensors": sealed},
        num_bytes=num_bytes,
    )
    cut.write_manifest(directory, manifest)
    return manifest


def assert_saved(found: dict[str, np.ndarray]) -> None:
    assert found.keys() == SAVED.keys()
    for name, array in SAVED.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_packed_save_comes_back_as_aligned_views() -> None:
    image = bytearray(cutfile.packed_bytes(SAVED) + 100)
    num_bytes = cutfile.pack(SAVED, image)
    assert num_bytes == cutfile.packed_bytes(SAVED)
    assert_saved(cutfile.unpack(memoryview(image)[:num_bytes]))
    mapped = np.zeros(len(image), np.uint8)
    cutfile.pack(SAVED, mapped)
    found = cutfile.unpack(mapped)
    assert {name: array.flags.aligned for name, array in found.items()} == dict.fromkeys(
        SAVED, True
    )


def test_strided_arrays_are_packed_by_value() -> None:
    image = bytearray(10_000)
    cutfile.pack({"x": np.arange(20).reshape(4, 5)[:, ::2]}, image)
    assert cutfile.unpack(image)["x"].tolist() == [[0, 2, 4], [5, 7, 9], [10, 12, 14], [15, 17, 19]]


def test_written_file_is_read_by_the_safetensors_library(tmp_path: Path) -> None:
    cutfile.write_save(tmp_path, "a.safetensors", SAVED)
    assert_saved(safetensors.numpy.load_file(tmp_path / "a.safetensors"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_cut_comes_back_whole(tmp_path: Path) -> None:
    manifest = write_cut(tmp_path)
    found, files = cutfile.read_cut(tmp_path)
    assert found == manifest
    assert cut.verify(tmp_path) == manifest
    assert_saved(files["server0.safetensors"])


def zeros() -> dict[str, np.ndarray]:
    return {name: np.zeros_like(array) for name, array in SAVED.items()}


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 1 << 20])
def test_a_file_is_read_into_what_is_there(
    tmp_path: Path, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutfile, "CHUNK_BYTES", chunk_bytes)
    ((name, expected),) = write_cut(tmp_path).files.items()
    into = zeros()
    found = cutfile.read_file(name, expected, tmp_path, into=into)
    assert_saved(found)
    assert all(found[key] is into[key] for key in SAVED)


def test_what_does_not_fit_is_read_beside_it(tmp_path: Path) -> None:
    ((name, expected),) = write_cut(tmp_path).files.items()
    into = zeros()
    into["buckets"] = np.zeros(4, np.int64)
    into["dense.float64.value"] = np.zeros(9, np.int64)
    into["table.weight.value"] = np.zeros((5, 7), "f4").T
    into["table.none.key"].flags.writeable = False
    del into["table.weight.row_step"]
    assert_saved(cutfile.read_file(name, expected, tmp_path, into=into))
    assert not any(array.any() for array in into.values())


def test_a_file_that_comes_in_pieces_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((name, expected),) = write_cut(tmp_path).files.items()
    preadv = os.preadv

    def some(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        count = sum(map(len, buffers))
        return preadv(descriptor, [buffers[0][: min(count, 3)]], offset)

    monkeypatch.setattr(os, "preadv", some)
    assert_saved(cutfile.read_file(name, expected, tmp_path, into=zeros()))
    monkeypatch.setattr(os, "preadv", lambda *_: 0)  # somebody has made it shorter meanwhile
    with pytest.raises(PermanentError, match=r"server0\.safetensors: cannot be read"):
        cutfile.read_file(name, expected, tmp_path, into=zeros())


@pytest.mark.parametrize("damage", ["flip", "truncate", "grow"])
def test_damage_at_any_byte_is_found_and_a_whole_copy_read_instead(
    tmp_path: Path, damage: str
) -> None:
    ((name, expected),) = write_cut(tmp_path).files.items()
    image = (tmp_path / name).read_bytes()
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    for at in range(len(image)):
        damaged = bytearray(image)
        match damage:
            case "flip":
                damaged[at] ^= 1
            case "truncate":
                del damaged[at:]
            case _:
                damaged.insert(at, 0)
        (first / name).write_bytes(damaged)
        with pytest.raises(PermanentError, match="server0"):
            cutfile.read_file(name, expected, first, into=zeros())
    second.mkdir()
    (second / name).write_bytes(image)
    into = zeros()
    assert_saved(cutfile.read_file(name, expected, first, second, into=into))
    assert_saved(into)


@pytest.mark.parametrize("damage", ["truncate", "empty", "flip", "remove"])
def test_damaged_file_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    write_cut(tmp_path)
    path = tmp_path / "server0.safetensors"
    image = bytearray(path.read_bytes())
    image[-20] ^= 1
    match damage:
        case "truncate":
            path.write_bytes(path.read_bytes()[:-1])
        case "empty":
            path.write_bytes(b"")
        case "flip":
            path.write_bytes(image)
        case _:
            path.unlink()
    with pytest.raises(PermanentError, match=r"server0\.safetensors"):
        cutfile.read_cut(tmp_path)
    with pytest.raises(PermanentError, match=r"server0\.safetensors"):
        cut.verify(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"), [(" 9\n", " 8\n"), ("70", "71"), ("}", ""), ('"step"', '"steps"')]
)
def test_damaged_manifest_is_refused(tmp_path: Path, old: str, new: str) -> None:
    write_cut(tmp_path)
    path = tmp_path / "manifest.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(PermanentError, match=r"manifest\.json"):
        cut.read_manifest(tmp_path)


def test_directory_without_a_manifest_holds_no_cut(tmp_path: Path) -> None:
    cutfile.write_save(tmp_path, "a.safetensors", SAVED)
    with pytest.raises(PermanentError, match=r"manifest\.json: no readable manifest"):
        cut.read_manifest(tmp_path)


@pytest.mark.parametrize("image", [b"", b"\x08\0\0\0", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}x"[:9]])
def test_bytes_that_are_no_save_are_refused(image: bytes) -> None:
    with pytest.raises(PermanentError, match="safetensors"):
        cutfile.unpack(image)
