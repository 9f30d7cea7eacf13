"""What tests of all kinds need."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _stays_in_its_folder() -> Iterator[None]:
    """Fail the test that leaves the process in another folder, and not those that come after it."""
    before = Path.cwd()
    yield
    if (now := Path.cwd()) != before:
        os.chdir(before)
        pytest.fail(f"the test has left the working directory at {now}; use monkeypatch.chdir")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB; `fill` fills it."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k,mode=0700", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no byte free on a small disk; the file to remove."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast
