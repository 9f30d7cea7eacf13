"""Jobs that share devices of this machine: the pages of their workers, and what was decided."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from paceline.base.errors import ConfigError
from paceline.base.jobdir import RUN_PREFIX, run_place
from paceline.base.private_folders import is_own_folder
from paceline.jobs.history import Tail
from paceline.wire.client import NodeStatus
from paceline.wire.gate_page import GatePage
from paceline.wire.sharing import SharingDecision
from paceline.wire.spec import ShareSpec

COLUMNS = ("node", "device", "class", "opportunistic jobs may use", "why")


class SharingLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of ``sharing.jsonl``."""

    t: float
    """Unix time."""
    node: str
    decision: SharingDecision


def read_sharing(path: Path) -> list[SharingLine]:
    """Read what was decided about a job's device, in order; lines that are torn are left out."""
    found = []
    for line in Tail(path).lines():
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(msgspec.json.decode(line, type=SharingLine))
    return found


def rows(job_id: str, share: ShareSpec, nodes: Iterable[NodeStatus]) -> list[tuple[str, ...]]:
    """One or two per node that shares a device, as `COLUMNS` has it."""
    found: list[tuple[str, ...]] = []
    for node in nodes:
        if share.every and node.role == "worker":
            now = node.sharing
            told = ("-", "nothing is decided yet") if now is None else (now.allowed, now.why)
            kind: str = share.kind
            if now is not None and kind == "auto":
                is_kept = now.guaranteed == job_id
                kind += ", guaranteed now" if is_kept else ", opportunistic now"
            (device,) = share.of(node.node)
            found.append((node.node, device, kind, *told))
            if node.memory is not None:
                told = (f"this worker {node.memory.allowed}", node.memory.why)
                found.append((node.node, f"memory of {device}", kind, *told))
    return found


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
