"""Folders of this user alone, in places where every user may make folders.

A folder counts as private if it belongs to this user, is no link, and has mode 0700. Another user
may make a folder of the expected name first. Only root could remove that one, so `claim` then takes
another name, and notes it down for all who look for the folder.
"""

import contextlib
import grp
import os
import pwd
import re
import secrets
import stat
from pathlib import Path

from paceline.base.errors import ConfigError
from paceline.base.files import write_file

TAKEN = "~"
"""Separator between the usual name of a folder and what makes another name of it."""
NUM_OTHERS = 4
"""Other names that `claim` tries; nobody can foresee them."""
_TAKEN_NAME = re.compile(rf"{TAKEN}[0-9a-f]{{8}}$")


class FolderTaken(ConfigError):
    """Something of another user has the folder's name; this user cannot remove it."""


def make_private(folder: Path) -> None:
    """Make a folder (0700) in a place that others may write to, or see that it is ours already.

    Once it is ours only root and the owner of the place can exchange it: see `check_place`.

    Raises:
        FolderTaken: something of another user has the folder's name.
        ConfigError: the place is not safe, or something else of this user has the name.
        OSError: it cannot be made.
    """
    check_place(folder.parent)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        _check_private(folder)


def is_own_folder(path: Path) -> bool:
    """Tell whether a path is a folder of this user; a link to one is not."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def check_place(folder: Path) -> None:
    """Check that neither every user nor a group of several can exchange what lies in a folder.

    The folder's owner is trusted, and so is who has write access by an access control list.

    Raises:
        ConfigError: they can.
        OSError: there is no such folder.
    """
    found = folder.stat()
    if found.st_mode & stat.S_ISVTX:
        return
    if found.st_mode & stat.S_IWOTH:
        who = "every user"
    elif found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid):
        who = f"every member of group {found.st_gid}"
    else:
        return
    raise ConfigError(
        f"{folder}: got a folder in which {who} may rename and remove what others have there, "
        f"expected one with the sticky bit; run `chmod +t {folder}`, or set TMPDIR and "
        "PACELINE_HOME to folders of your own"
    )


def _is_private_group(group: int) -> bool:
    """Tell whether a group is root's or has this user alone, as systems make one for each user."""
    if group == 0:
        return True
    try:
        members = grp.getgrgid(group)
    except KeyError:  # in a container users and groups often have no names
        return group == os.getegid()
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return members.gr_name == user and set(members.gr_mem) <= {user}


def _check_private(folder: Path) -> None:
    remedy = f"it may be another user's trap: look at it, then remove {folder}"
    refusal = ConfigError if folder.lstat().st_uid == os.geteuid() else FolderTaken
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise refusal(
            f"{folder}: got {_describe(folder, error)}, expected a folder of this user; {remedy}"
        ) from error
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        got = f"a folder of user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}"
        expected = f"one of user {os.geteuid()} with mode 0700"
        raise refusal(f"{folder}: got {got}, expected {expected}; {remedy}")


def _describe(path: Path, error: OSError) -> str:
    if path.is_symlink():
        return "a symbolic link"
    return "no folder" if isinstance(error, NotADirectoryError) else str(error.strerror)


def claim(usual: Path, note: Path) -> Path:
    """Make a private folder, with another name where the usual one is taken.

    Args:
        usual: path of the folder, unless something of another user is there.
        note: file that says where the folder is, if not there; others read it with `claimed`.

    Raises:
        ConfigError: the place is not safe, or something else of this user has the name.
        OSError: the folder, or the note, cannot be made.
    """
    for folder in _candidates(usual, note):
        try:
            make_private(folder)
        except FolderTaken as error:
            taken = error
            continue
        if folder != usual:
            write_file(note, os.fsencode(folder))
        else:
            note.unlink(missing_ok=True)
        return folder
    raise taken


def _candidates(usual: Path, note: Path) -> list[Path]:
    """List where a folder may be made: first where it was, so that what lies there is found."""
    noted = claimed(usual, note)
    names = [f"{usual.name}{TAKEN}{secrets.token_hex(4)}" for _ in range(NUM_OTHERS)]
    known = [noted, usual] if noted.parent == usual.parent else [usual]
    return [*known, *map(usual.with_name, names)]


def claimed(usual: Path, note: Path) -> Path:
    """Return the folder that `claim` has made, or would make first."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return Path(os.fsdecode(note.read_bytes()))
    return usual


def usual_name(folder: Path) -> str:
    """Return the usual name of a folder that `claim` has made."""
    return _TAKEN_NAME.sub("", folder.name)
