"""What a device coordinator writes on the pages of workers that share a memory."""

import math
from pathlib import Path

from paceline.features.sharing.device_memory import MemoryCoordinator, worker_name
from paceline.features.sharing.gate_page import LIMIT, MINIMUM, ROOM, GatePage, PageMemory
from paceline.features.sharing.master import rows
from paceline.features.sharing.policy.law import SharingState
from paceline.features.sharing.wire import MemoryLimit
from paceline.wire.spec import ShareClass, ShareSpec

MIB = 1 << 20


def page_of(place: Path, job: str, share: ShareClass, room: int = 100 * MIB) -> GatePage:
    folder = place / f"paceline-{job}"
    folder.mkdir()
    page = GatePage.create(folder / "worker-0.share", "cpu:0", share)
    page.words[ROOM] = room
    return page


def test_limits_stand_on_the_pages(tmp_path: Path) -> None:
    kept, other = page_of(tmp_path, "a", "guaranteed"), page_of(tmp_path, "b", "opportunistic")
    none = page_of(tmp_path, "c", "opportunistic", room=0)
    memory, gates = MemoryCoordinator(), SharingState()
    told = memory.look(0.0, [other, none], gates)
    assert [one.memory and one.memory.cause for one in told] == ["alone"]
    assert other.words[LIMIT] == math.inf and not none.words[LIMIT]
    other.words[MINIMUM] = 20 * MIB
    other.say_memory(PageMemory(1, math.inf, 10 * MIB, 90 * MIB, 0, 0, 1))
    gates = SharingState(phase="arrival", guaranteed="a", others=("b",), duty=0.02)
    told = memory.look(1.0, [kept, other, none], gates)
    assert other.words[LIMIT] == 20 * MIB and kept.words[LIMIT] == 1.0
    assert {one.memory.worker for one in told if one.memory} == {"a/worker-0", "b/worker-0"}
    assert all(one.cause == "memory" and one.duty == 0.02 for one in told)
    other.say_memory(PageMemory(2, 20 * MIB, 10 * MIB, 20 * MIB, 0, 99 * MIB, 2))
    memory.look(1.1, [kept, other, none], gates)
    assert kept.words[LIMIT] == 80 * MIB, "when the other has let go of it"
    assert not MemoryCoordinator().look(1.2, [kept, other, none], gates), "a successor"


def test_the_least_memory_that_jobs_say_holds(tmp_path: Path) -> None:
    first, second = (
        page_of(tmp_path, job, "auto", size * MIB) for job, size in (("a", 8), ("b", 4))
    )
    told = MemoryCoordinator().look(0.0, [first, second], SharingState())
    assert {one.memory.room_bytes for one in told if one.memory} == {4 * MIB}
    assert worker_name(first) == "a/worker-0"


def test_status_has_a_row_for_memory() -> None:
    limit = MemoryLimit(
        worker="b/worker-0",
        limit_bytes=3 << 29,
        cause="spill",
        seen_bytes=300 * MIB,
        by="a/worker-0",
        room_bytes=4 << 30,
    )
    share = ShareSpec(kind="opportunistic", device="cpu:0")
    assert rows("b", share, ["worker-0"], {}, {"worker-0": limit})[1] == (
        "worker-0",
        "memory of cpu:0",
        "opportunistic",
        "this worker 1.5 GiB of 4 GiB of memory",
        "a/worker-0 found no room for 300 MiB in a mini-batch, and is guaranteed",
    )
