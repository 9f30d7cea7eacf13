"""Copies of the script's folder: each act has one, so the user's own files stay as they are.

Small files are copied, and the folders around them. Large files, large folders and hidden folders
are linked: an act that writes into these would reach the user's own.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from paceline.base.errors import ConfigError

SMALL_BYTES = 4 << 20
FOLDER_BYTES = 64 << 20
FOLDER_FILES = 1000
"""A folder with more of either is linked as a whole."""
LEFT_OUT = {"__pycache__", ".git", ".venv", "venv", "node_modules", ".paceline"}


class ActStage(Struct, frozen=True, kw_only=True):
    """Place where an act runs."""

    root: Path
    """Copy of the folder, and working directory."""
    script: Path
    """Copy of the script."""
    before: Mapping[str, tuple[int, int]]
    """Size and time of each file, before the act."""
    links: tuple[str, ...]
    """Files and folders that were linked instead of copied, or copied in part."""

    def written(self) -> list[str]:
        """Files that the act wrote or changed, by their paths in the folder."""
        return sorted(
            name for name, state in _states(self.root).items() if self.before.get(name) != state
        )


def folder_of(script: Path) -> Path:
    """Find the folder in which the script runs: the current one if the script is below it.

    Raises:
        ConfigError: there is no such script.
    """
    if not script.is_file() or script.suffix != ".py":
        raise ConfigError(f"got {script}, expected a script of Python (.py) that is there")
    here, script = Path.cwd().resolve(), script.resolve()
    return here if script.is_relative_to(here) and here != Path.home() else script.parent


def set_stage(script: Path, root: Path) -> ActStage:
    """Copy the folder of the script to ``root``.

    Raises:
        ConfigError: there is no such script, or the folder cannot be copied.
    """
    folder = folder_of(script)
    inside = script.resolve().relative_to(folder)
    links: list[str] = []
    try:
        _copy(folder, root, inside.parts, links)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be copied to {root} ({error.strerror}: {error.filename}); make room "
            "there, or set TMPDIR to another folder"
        ) from error
    return ActStage(root=root, script=root / inside, before=_states(root), links=tuple(links))


def _copy(source: Path, target: Path, way: tuple[str, ...], links: list[str]) -> None:
    """Copy a folder; ``way`` leads from it to the script, whose folders are never linked."""
    target.mkdir(parents=True)
    for one in sorted(source.iterdir()):
        if one.name in LEFT_OUT or target.is_relative_to(one):
            continue
        leads = bool(way) and one.name == way[0]
        goal = target / one.name
        if one.is_dir() and leads:
            _copy(one, goal, way[1:], links)
        elif one.is_dir() and not one.name.startswith(".") and _is_small(one):
            _copy_small(one, goal, links)
        elif one.is_file() and (leads or one.stat().st_size <= SMALL_BYTES):
            shutil.copy2(one, goal)
        elif one.exists():
            goal.symlink_to(one.resolve())
            links.append(one.name)


def _copy_small(source: Path, target: Path, links: list[str]) -> None:
    try:
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    except shutil.Error:  # sockets, say, or what may not be read; the rest was copied
        links.append(f"{source.name} (copied in part)")


def _is_small(folder: Path) -> bool:
    size = count = 0
    for where, _, names in os.walk(folder):
        count += len(names)
        size += sum(os.lstat(os.path.join(where, name)).st_size for name in names)
        if count > FOLDER_FILES or size > FOLDER_BYTES:
            return False
    return True


def _states(root: Path) -> dict[str, tuple[int, int]]:
    return {
        path.relative_to(root).as_posix(): (found.st_size, found.st_mtime_ns)
        for path in _files(root)
        if (found := path.lstat())
    }


def _files(root: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        yield from (Path(where) / name for name in names)
