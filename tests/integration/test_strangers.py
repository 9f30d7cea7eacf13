"""What comes to a job's ports from anybody else is refused, logged once, and harms nothing."""

import asyncio
import contextlib
import os
import random
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from paceline.base.errors import PacelineError, PermanentError
from paceline.base.samples import Span
from paceline.wire.client import Call, Done, GetStatus, Kill, Scale
from paceline.wire.codec import encode
from paceline.wire.control import ControlClient
from paceline.wire.control_auth import Introduction
from paceline.wire.data_plane import DataClient
from paceline.wire.events.nodes import ProcessUpEvent
from paceline.wire.messages.agent import AgentHello, AgentUp, FromProcess, Heartbeat
from paceline.wire.messages.data import (
    At,
    Data,
    Export,
    Held,
    Order,
    Part,
    Pull,
    Pulled,
    Ready,
    Refused,
)
from paceline.wire.messages.feeds import LINES_PER_FEED
from paceline.wire.messages.node import Committed, Finished, LeaseRequest, NodeUp, ProcessUp
from paceline.wire.spec import DataPlaneSpec, NodeSpec
from tests.chaos.planted import NUM_COUNTERS
from tests.integration.running import RunningJob, running, until

pytestmark = pytest.mark.soak

ATTEMPTS = 8
"""At each port, with each kind of bytes."""
WRONG = b"0" * 64
NOBODY = 9_999
"""An incarnation that was never given."""
ME = f"worker-0-{NOBODY}"
ZMTP_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize(
    "plane",
    [DataPlaneSpec(transport="shm"), DataPlaneSpec(transport="tcp", encryption="curve")],
    ids=["shm", "curve"],
)
def test_strangers_at_every_port_are_refused_and_the_job_goes_on(
    tmp_path: Path, plane: DataPlaneSpec
) -> None:
    flags = ("--step-s", "0.05")
    with running(tmp_path, *flags, workers=1, servers=NodeSpec(count=1), data_plane=plane) as job:
        job.until_committed(100)
        before = pids_of(job)
        noise(job, random.Random(7))
        speak_with_a_wrong_secret(job)
        speak_confused_to_the_server(job)
        speak_confused_to_the_agents(job)
        asyncio.run(speak_confused_to_the_master(job))
        now = job.status()
        assert now.state == "training", "the strangers came too late to disturb anybody"
        assert pids_of(job) == before
        job.check_finished()
    assert len(job.events("node_started")) == 2, "a process was started again"
    assert not job.events("relaunch") + job.events("agent_lost") + job.events("fenced")
    assert len(job.events("master_started")) == 1
    check_logs(job)


def check_logs(job: RunningJob) -> None:
    """Each peer is named once, however often it came."""
    lines = [
        line
        for path in job.job.logs.iterdir()
        for line in path.read_text("utf8", "replace").splitlines()
    ]

    def count(*words: str) -> int:
        return sum(all(word in line for word in words) for line in lines)

    assert count("secret_refused") == 1
    assert 1 <= count("data_peer_refused") <= 2, "once for wrong secrets, once for no handshake"
    assert count("node_link_refused", f"pid={os.getpid()}") == 2, "once at each agent"
    for kind in ("Part", "Pull", "Ready", "Export"):
        assert count("message_refused", f"peer={ME}", f"type={kind}") == 1, kind
    assert count("Traceback") == 0


# --------------------------------------------------------------------------- who is there


def pids_of(job: RunningJob) -> dict[str, tuple[int, int, int]]:
    now = job.status()
    found = {node.node: (node.inc, node.pid, node.agent_pid) for node in now.nodes}
    return found | {"master": (0, now.master_pid, 0)}


def address_of_server(job: RunningJob) -> str:
    return [event.address for event in job.told(ProcessUpEvent) if event.node == "server-0"][-1]


def endpoints(job: RunningJob) -> list[tuple[int, object]]:
    """Every port and every socket that the job listens at."""
    found: list[tuple[int, object]] = []
    if job.job.master_address.exists():
        host, _, port = job.job.master_address.read_text().strip().rpartition(":")
        found.append((socket.AF_INET, (host, int(port))))
    scheme, _, place = address_of_server(job).partition("://")
    if scheme in ("tcp", "curve"):
        host, _, port = place.rpartition(":")
        found.append((socket.AF_INET, (host, int(port))))
    found_there = [path for path in job.job.run_dir.iterdir() if path.suffix != ".template"]
    sockets = [path for path in found_there if stat.S_ISSOCK(path.stat().st_mode)]
    assert len(sockets) == 3 + (scheme == "shm"), "of nodes and the master"
    assert len(found) == (0 if scheme == "shm" else 2)
    return found + [(socket.AF_UNIX, str(path)) for path in sockets]


# --------------------------------------------------------------------------- bytes


def noises(rng: random.Random) -> Iterator[bytes]:
    frame = encode(Finished(inc=1))
    framed = struct.pack("!I", len(frame)) + frame
    yield rng.randbytes(rng.randrange(1, 5_000))
    yield framed[: rng.randrange(1, len(framed))]
    yield struct.pack("!I", 0xFFFFFFFF) + rng.randbytes(100)
    yield struct.pack("!I", 60 << 20) + rng.randbytes(100)
    yield ZMTP_GREETING + rng.randbytes(200)
    yield HTTP2_PREFACE + b"\xff\xff\xff" + rng.randbytes(200)
    yield b""


def noise(job: RunningJob, rng: random.Random) -> None:
    for family, place in endpoints(job):
        for _ in range(ATTEMPTS):
            for data in noises(rng):
                with socket.socket(family) as stranger:
                    stranger.settimeout(5.0)
                    stranger.connect(place)
                    with contextlib.suppress(ConnectionError):
                        stranger.sendall(data)


class Liar(ControlClient):
    """Goes on although nothing is proven."""

    def _prove(self, me: Introduction, answer: bytes, method: str) -> tuple[tuple[str, str], ...]:
        return (("authorization", self._secret.decode()),)


def speak_with_a_wrong_secret(job: RunningJob) -> None:
    address = job.job.control_address()
    for _ in range(ATTEMPTS):
        with pytest.raises(PermanentError, match="does not have this job's secret"):
            ControlClient(address, WRONG).call_sync(GetStatus(), 5.0)
        with pytest.raises(PermanentError, match="wrong or missing proof of the secret"):
            Liar(address, WRONG).call_sync(GetStatus(), 5.0)
    for _ in range(ATTEMPTS):
        client = DataClient({1: address_of_server(job)}, WRONG, ME, arena_bytes=0)
        client.send(1, Pull(epoch_no=1, inc=NOBODY, ticket=1))
        assert not client.poll(0.05)
        client.close()


# --------------------------------------------------------------------------- messages


def confused(epoch_no: int) -> Iterator[tuple[Data, list[object]]]:
    """Messages as a process might send them that is out of its mind, with their frames."""
    ids, rows = np.arange(4), np.full((4, 1), -1.0)
    dense = np.full(NUM_COUNTERS, -4.0)
    good = Part(
        epoch_no=epoch_no,
        inc=NOBODY,
        seq=1,
        map_version=1,
        spans=(Span(0, 4_000, 4_004),),
        weight=4,
        rates=(1.0,),
        tables=(0,),
        dense=("float64",),
    )
    frames: list[object] = [dense, ids, rows]

    def part(**fields: object) -> Part:
        return msgspec.structs.replace(good, **fields)

    for other in (0, epoch_no - 1, epoch_no + 1, 2**40, -1):
        if other != epoch_no:
            yield part(epoch_no=other), frames
            yield Ready(epoch_no=other, inc=NOBODY, seq=1, map_version=1), []
            yield Pull(epoch_no=other, inc=NOBODY, ticket=1, tables=(0,)), [ids]
            yield Export(epoch_no=other, inc=NOBODY, ticket=1, table=0, offset=0), []
    for spans in (
        (Span(0, -4, 0),),
        (Span(0, 8, 4),),
        (Span(-1, 0, 4),),
        (Span(-3 * LINES_PER_FEED, 0, 4),),
        (Span(0, 0, 4), Span(0, 2, 6)),
        (Span(0, 0, 4), Span(0, 0, 4)),
    ):
        yield part(spans=spans), frames
    yield part(seq=0), frames
    yield part(seq=-5), frames
    yield part(weight=-1), frames
    yield part(rates=()), frames
    yield part(rates=(1.0,) * 9), frames
    yield part(step=1), frames
    yield part(slice=(Span(0, 0, 4),)), frames
    for tables in ((1,), (-1,), (0, 0), (2**40,)):
        yield part(tables=tables), [dense, *[ids, rows] * len(tables)]
        yield (
            Pull(epoch_no=epoch_no, inc=NOBODY, ticket=1, map_version=1, tables=tables),
            [ids] * len(tables),
        )
    for bad_ids in (np.array([0, 4_096]), np.array([-1]), np.array([2**62])):
        yield part(), [dense, bad_ids, np.zeros((bad_ids.size, 1))]
        yield Pull(epoch_no=epoch_no, inc=NOBODY, ticket=1, map_version=1, tables=(0,)), [bad_ids]
    yield part(), []
    yield part(), frames[:2]
    yield part(), [*frames, ids]
    yield part(), [dense[:-1], ids, rows]
    yield part(), [dense, ids, rows[:-1]]
    yield part(), [dense, np.zeros(13, np.uint8), rows]
    yield part(dense=("float32",)), frames
    yield part(dense=("O",)), frames
    yield part(dense=("float64", "float64")), frames
    yield Pull(epoch_no=epoch_no, inc=NOBODY, ticket=1, map_version=1, tables=(0,)), []
    yield (
        Pull(epoch_no=epoch_no, inc=NOBODY, ticket=1, map_version=1, tables=(0,)),
        [np.zeros(3, np.uint8)],
    )
    yield Pull(epoch_no=epoch_no, inc=NOBODY, ticket=1, tables=(0,), map_version=77), []
    yield Ready(epoch_no=epoch_no, inc=NOBODY, seq=1, map_version=1), []
    yield Ready(epoch_no=epoch_no, inc=NOBODY, seq=2**60, map_version=1), []
    yield Ready(epoch_no=epoch_no, inc=NOBODY, seq=1, map_version=77), []
    for table in (-1, 1, 2**40):
        yield (
            Export(epoch_no=epoch_no, inc=NOBODY, ticket=1, map_version=1, table=table, offset=0),
            [],
        )
    yield At(epoch_no=epoch_no, server=NOBODY, position=2**40), []
    yield Held(epoch_no=epoch_no, server=NOBODY, inc=NOBODY, seq=1), []
    yield Order(epoch_no=epoch_no, leader=0, start=1, entries=()), []


def speak_confused_to_the_server(job: RunningJob) -> None:
    now = job.status()
    worker = next(node.inc for node in now.nodes if node.role == "worker")
    with closing(
        DataClient({1: address_of_server(job)}, job.job.secret(), ME, arena_bytes=1 << 22)
    ) as client:
        answers: list[Data] = []

        def say(message: Data, frames: list[object]) -> None:
            until(lambda: client.send(1, message, frames), "a server that reads")
            answers.extend(answer for _, answer, _ in client.poll(0.0))

        for message, frames in confused(now.epoch_no):
            say(message, frames)
            if hasattr(message, "inc"):
                # The same in the name of the worker that lives.
                say(msgspec.structs.replace(message, inc=worker), frames)
        # Served in order: its answer comes after all of that was looked at.
        say(Pull(epoch_no=now.epoch_no, inc=NOBODY, ticket=5, dense=False), [])
        until(
            lambda: (
                answers.extend(answer for _, answer, _ in client.poll(0.1))
                or any(isinstance(answer, Pulled) for answer in answers)
            ),
            "a server that answers",
        )
    assert {type(answer) for answer in answers} == {Refused, Pulled}
    assert [a.ticket for a in answers if isinstance(a, Pulled)] == [5]


def node_messages(epoch_no: int, inc: int) -> list[NodeUp]:
    """What would hurt the life ``inc``, were it believed."""
    everything = (Span(0, 0, 4_096),)
    return [
        Finished(inc=inc),
        LeaseRequest(epoch_no=epoch_no, inc=inc, n=1, feed=0, handled=everything),
        LeaseRequest(epoch_no=epoch_no, inc=inc, n=-1, feed=-1, handled=(Span(9, -5, 5),)),
        Committed(epoch_no=epoch_no, inc=inc, step=10**6, committed=everything),
        Committed(epoch_no=epoch_no, inc=inc, step=-1, committed=(Span(-1, 5, 1),)),
    ]


def speak_confused_to_the_agents(job: RunningJob) -> None:
    now = job.status()
    for node in now.nodes:
        path = job.job.run_dir / f"{node.node}.sock"
        for inc, pid in ((NOBODY, os.getpid()), (node.inc, os.getpid()), (node.inc, node.pid)):
            hello = ProcessUp(node=node.node, inc=inc, pid=pid, role=node.role)
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(str(path))
                for message in (hello, *node_messages(now.epoch_no, node.inc)):
                    data = encode(message)
                    with contextlib.suppress(ConnectionError):
                        stranger.sendall(struct.pack("!I", len(data)) + data)


async def speak_confused_to_the_master(job: RunningJob) -> None:
    now = job.status()
    client = ControlClient(job.job.control_address(), job.job.secret())
    calls: list[Call] = [Kill(node="nobody"), Kill(node=""), Scale(workers=-3)]
    for call in calls:
        reply = await client.call(call, 10.0)
        assert isinstance(reply, Done)
        assert reply.error
    worker, server = (next(n for n in now.nodes if n.role == r) for r in ("worker", "server"))
    hello = AgentHello(node="worker-77", agent="a", agent_pid=os.getpid(), host="elsewhere")
    messages: list[AgentUp] = [Heartbeat(node="worker-0"), Heartbeat(node="")]
    for node in (worker, server):
        for inc in (node.inc, NOBODY, -1):
            messages += [
                FromProcess(node=name, body=body)
                for name in (node.node, "worker-77", "-")
                for body in node_messages(now.epoch_no, inc)
            ]
    for greeting in ([], [hello]):
        stream = await client.connect_agent()
        for message in (*greeting, *messages):
            stream.send_nowait(message)
        await stream.close()
    with contextlib.suppress(PacelineError):
        await client.call(GetStatus(), 10.0)
