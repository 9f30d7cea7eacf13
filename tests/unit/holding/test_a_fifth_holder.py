"""A holder of state that paceline does not have: its own class is all that the master needs.

It stands for the next one (a mesh, say): one worker holds the state, and what that worker says it
has handled is in the model.
"""

import re
from pathlib import Path
from typing import Any

import paceline
from paceline.base.samples import Span
from paceline.protocol.acts import Instruction, Seal, Send, WriteAhead
from paceline.protocol.holding.holder import Holder
from paceline.protocol.records import CutValid, Records
from paceline.protocol.samples.grant_size import Sizing
from paceline.protocol.snapshot import Snapshot, restore, take
from paceline.protocol.training import MasterState
from paceline.wire.messages.feeds import Feed
from paceline.wire.messages.node import Copied, Grant, LeaseRequest, OpenFeed, TakeCut
from paceline.wire.schema import ModelSchema

SOURCE = Path(paceline.__file__).parent
FEED = Feed(
    feed=0,
    purpose="train",
    num_samples=8,
    epochs=1,
    batch_size=4,
    shard_size=4,
    shuffle=False,
    seed=0,
)


class OneWorker(Holder):
    """The state lies with the worker that came first."""

    leases_training = True
    model = ModelSchema()

    def __init__(self) -> None:
        self.owner = 0

    @property
    def phase(self) -> str:
        return "training" if self.owner else "starting"

    @property
    def is_training(self) -> bool:
        return self.owner > 0

    def apply(self, record: Records) -> bool:
        return False

    def kept(self) -> dict[str, Any]:
        return {}

    def restore(self, kept: Snapshot) -> bool:
        return True

    def came(self, inc: int) -> None:
        self.owner = self.owner or inc

    def lost(self, inc: int, *, returned: bool) -> list[Instruction]:
        self.core.forget_worker(inc)
        self.owner = 0 if inc == self.owner else self.owner
        return self.core.serve()

    def planned(self) -> list[Instruction]:
        return []

    def copiers(self) -> tuple[int, ...]:
        return (self.owner,) if self.owner else ()

    def may_copy(self, inc: int) -> bool:
        return inc == self.owner

    def cut_valid(self, valid: CutValid) -> list[Instruction]:
        return [self.core.record(valid), *self.core.serve()]

    def cut_stored(self) -> list[Instruction]:
        return self.core.serve()

    def resend(self) -> list[Instruction]:
        return []


class Job:
    """A master with it, and its one worker."""

    def __init__(self) -> None:
        self.state = MasterState(OneWorker(), mode="asp", samples="exactly-once")
        self.records: list[Records] = []
        self.n = 0
        self.do(self.state.worker_up(1, "worker-0"))
        self.do(self.state.open_feed(OpenFeed(inc=1, feed=FEED)))

    def do(self, instructions: list[Instruction]) -> list[object]:
        """Carry out what it says; returns the messages."""
        sent: list[object] = []
        for one in instructions:
            match one:
                case WriteAhead(record=record):
                    self.records.append(record)
                case Send(message=TakeCut() as asked):
                    sent += self.do(self.state.copy_said(self.copied(asked.cut_no)))
                case Send(message=message):
                    sent.append(message)
                case Seal(valid=valid):
                    sent += self.do(self.state.cut_sealed(valid))
                case _:
                    pass
        return sent

    def copied(self, cut_no: int) -> Copied:
        done = self.state.ledger.done.spans()
        return Copied(
            epoch_no=self.state.epoch_no,
            inc=1,
            cut_no=cut_no,
            position=0,
            step=self.state.step,
            committed=done,
            sharers=(1,),
            stored=True,
        )

    def ask(self, *handled: Span) -> Grant:
        self.n += 1
        request = LeaseRequest(
            epoch_no=self.state.epoch_no, inc=1, n=self.n, feed=0, handled=handled
        )
        sent = self.do(self.state.request(request, Sizing(samples=4)))
        (grant,) = [one for one in sent if isinstance(one, Grant)]
        return grant


def test_its_job_trains_cuts_and_ends_with_every_sample_once() -> None:
    job = Job()
    spans: list[Span] = []
    grant = job.ask()
    while not grant.end:
        spans += grant.spans
        grant = job.ask(*grant.spans)
    assert sorted(spans) == [Span(0, 0, 4), Span(0, 4, 8)]
    assert job.state.ledger.is_complete(0)
    assert job.state.cuts.valid[-1].committed == (Span(0, 0, 8),)


def test_a_restarted_master_has_what_the_journal_says() -> None:
    job = Job()
    job.ask(*job.ask().spans)
    replayed = MasterState(OneWorker(), mode="asp", samples="exactly-once")
    for record in job.records:
        replayed.apply(record)
    assert replayed.ledger.done == job.state.ledger.done
    restored = MasterState(OneWorker(), mode="asp", samples="exactly-once")
    restore(restored, take(replayed))
    assert take(restored) == take(replayed)


COMPARES = re.compile(
    r"""(==|!=|\bin\b|\bcase\b)\s*\(?\[?\{?["'](ps|allreduce|fsdp|script)["']"""
    r"""|isinstance\([^)]*\b(ServerHolder|GroupHolder|ServerEdge|GroupEdge"""
    r"""|OnServers|Replicated|Sharded|Local)\b"""
)
OWN = ("wire/strategies.py", "/holding/")
MAX_COMPARES = 7
"""Of all files but the rows and the holders' own folders. May only shrink."""


def test_hardly_anything_asks_which_strategy_it_is() -> None:
    """What a strategy is like is in its row; what its holder does, in the holder's folder."""
    found = [
        f"{path.relative_to(SOURCE)}:{number}"
        for path in sorted(SOURCE.rglob("*.py"))
        if not any(own in str(path) for own in OWN)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if COMPARES.search(line)
    ]
    assert 0 < len(found) <= MAX_COMPARES, found
