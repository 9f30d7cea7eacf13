"""Pages of workers that share devices of this machine, of whatever job."""

from collections.abc import Iterator
from pathlib import Path

from paceline.base.errors import ConfigError
from paceline.base.jobdir import RUN_PREFIX, run_place
from paceline.base.private_folders import is_own_folder
from paceline.features.sharing.gate_page import GatePage


def page_paths() -> list[Path]:
    """Find the pages of all jobs, also of those that are over."""
    folders = filter(is_own_folder, run_place().glob(f"{RUN_PREFIX}*"))
    return sorted(path for folder in folders for path in folder.glob("*.share"))


def open_page(path: Path) -> GatePage | None:
    """Map a page; None: it is gone, of another version, or nobody of its job lives."""
    try:
        page = GatePage.open(path)
    except (FileNotFoundError, ConfigError):
        return None
    if not page.is_held:
        page.close()
        return None
    return page


def pages_of_jobs() -> Iterator[GatePage]:
    """Yield the page of each worker that lives and shares a device."""
    for path in page_paths():
        if (page := open_page(path)) is not None:
            try:
                yield page
            finally:
                page.close()
