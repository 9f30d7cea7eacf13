"""An agent's part in keeping the job's journal: it holds it, votes, and starts the next master.

`paceline.protocol.nodes.journal_keeper` decides. All agents on other machines also ask here where
the master is, once theirs is gone: those that keep the journal know.
"""

import asyncio
import contextlib
import logging
import math
import socket
import time
from functools import partial
from typing import assert_never

from paceline.agent.master_link import MasterLink
from paceline.agent.take_over import may_be_put_aside, take_over
from paceline.base.errors import PacelineError
from paceline.base.files import write_file
from paceline.base.jobdir import JobDir, home
from paceline.base.machine_probe import answers, listens
from paceline.jobs.handed_on import TakenOver
from paceline.protocol.nodes.journal_keeper import JournalKeeper
from paceline.wire.control import CallServer
from paceline.wire.keepers import Keepers, decode_call
from paceline.wire.messages.base import Message
from paceline.wire.messages.keeping import (
    AskMaster,
    AskVote,
    JournalAdd,
    JournalCopy,
    JournalHeld,
    KeeperCall,
    KeeperGround,
    KeeperLeaves,
    KeepersAre,
    KeepingDown,
    MasterIs,
    Seats,
    VoteIs,
)
from paceline.wire.spec import JobSpec

LOOK_S = 0.1
"""Seconds between two looks at what is due."""
UNHEARD_S = 1.8
"""Seconds without a word of the master for which nobody is elected in its place."""
DEAD_S = 2.0
"""Seconds without a word of it after which its machine is probed; if that answers nobody, another
master is started."""
SILENT_S = 4.0
"""Seconds without a word of a master whose machine answers, but not its supervisor: an agent there
may start another supervisor."""
BUSY_S = 40.0
"""Seconds without a word of a master whose supervisor lives: it starts the master again, or other
work keeps the master waiting. Agents without a master leave after 60 s."""
RANK_S = 0.3
"""Seconds between the attempts of two keepers, so that they do not ask for the same votes."""
LOST_S = 2.2
"""Seconds without a master after which an agent asks where it is; before, there is no other one."""
ASK_S, ASK_MOST_S = 0.4, 2.0
"""Seconds between the first two such questions, and at most: half as many again each time. All
agents ask the few that keep the journal."""

_log = logging.getLogger(__name__)


class JournalKept:
    """The journal of a job whose master is on another machine, as one agent keeps it.

    Args:
        job: directory of the node.
        node: of the agent.
        seat: identity of the agent.
        spec: of the job, for this machine.
        master: the agent's stream.
    """

    def __init__(
        self, job: JobDir, node: str, seat: str, spec: JobSpec, master: MasterLink
    ) -> None:
        self._job, self._node, self._spec, self._master = job, node, spec, master
        self._keeper = JournalKeeper(seat, UNHEARD_S)
        self._ground: KeeperGround | None = None
        self._server: CallServer | None = None
        self._address = ""
        self._seats = Seats()
        """Whom to ask for the master."""
        self._beside: tuple[str, ...] = ()
        """Nodes that have joined from the machine of the master."""
        self._newest = MasterIs(term=0)
        """The newest master that is known."""
        self._asked_s = self._tried_s = 0.0
        self._asks_again_s = ASK_S
        """Seconds from the newest question for the master to the next."""
        self._found_s = -math.inf
        """When the newest master was found here."""
        self._opening: asyncio.Task[None] | None = None
        self._voters: Keepers | None = None
        """Those that are asked for votes, once they were."""
        self._fails = False
        """Whether no master can be started here, as was seen."""
        self._next: JobDir | None = None
        """Where a master starts that this agent has started; None: none does."""

    @property
    def may_keep(self) -> bool:
        """Whether a master could be started here: no other part of this job is in the way."""
        there = JobDir(home() / "jobs" / self._job.job_id.rpartition(".")[0])
        return self._job.is_joined and (not there.path.exists() or may_be_put_aside(there))

    # ------------------------------------------------------------------ from the master

    def told(self, message: KeepingDown) -> None:
        """Take in what the master says."""
        now_s = time.monotonic()
        match message:
            case KeepersAre():
                self._seats, self._beside = message.seats, message.beside
            case JournalCopy():
                self._ground = message.ground or self._ground
                if self._keeper.copy(message, now_s):
                    self._know_master()
                self._answer()
            case JournalAdd():
                if self._keeper.add(message, now_s):
                    self._know_master()
                self._answer()
            case _:
                assert_never(message)

    def _know_master(self) -> None:
        keeper = self._keeper
        if keeper.seats.now:
            self._seats = keeper.seats
        address = self._job.master_address.read_text().strip()
        if keeper.term > self._newest.term or self._newest.address != address:
            host = self._ground.host if self._ground is not None else ""
            self._newest = MasterIs(term=keeper.term, address=address, host=host)

    def _answer(self) -> None:
        keeper = self._keeper
        if self._server is None:
            if self._opening is None and self._ground is not None:
                self._opening = asyncio.create_task(self._open(self._ground))
            return
        if not keeper.has_left:
            held = JournalHeld(
                node=self._node, place=keeper.place, term=keeper.term, address=self._address
            )
            self._master.send(held)

    async def _open(self, ground: KeeperGround) -> None:
        server = CallServer(self._job.secret(), self._called, decode_call)
        try:
            port = await server.start(host=self._spec.listen, identity=ground.identity)
        except PacelineError as error:
            _log.warning("keeps_no_journal node=%s error=%s", self._node, error)
            return
        self._server, self._address = server, f"{self._spec.listen}:{port}"
        self._answer()

    def leave(self) -> None:
        """Say that it votes no more: the agent ends."""
        keeper = self._keeper
        if self._server is not None and not keeper.has_left:
            keeper.has_left = True
            self._master.send(KeeperLeaves(node=self._node, term=keeper.term))

    async def close(self) -> None:
        """Answer nobody any more."""
        if self._server is not None:
            await self._server.stop()

    # ------------------------------------------------------------------ calls

    async def _called(self, call: KeeperCall) -> Message:
        match call:
            case AskVote():
                return self._keeper.asked(call, time.monotonic())
            case AskMaster():
                return self._newest if self._is_there else MasterIs(term=self._newest.term)
            case _:
                assert_never(call)

    @property
    def _is_there(self) -> bool:
        """Whether the newest master that is known was heard in the last seconds."""
        now_s = time.monotonic()
        found = now_s - self._found_s < SILENT_S
        heard = now_s - self._keeper.heard_s < UNHEARD_S
        return found or heard or self._master.silent_s() < UNHEARD_S

    # ------------------------------------------------------------------ the clock

    async def watch(self) -> None:
        """Look for the master where there is none, and for votes; never returns."""
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = time.monotonic()
            if self._next is not None:
                self._look_for_next(self._next)
            elif await self._is_due(now_s):
                await self._stand()
            elif not self._is_lost(now_s):
                self._asks_again_s = ASK_S
            elif now_s - self._asked_s > self._asks_again_s:
                self._asked_s = now_s
                self._asks_again_s = min(1.5 * self._asks_again_s, ASK_MOST_S)
                await self._ask()

    def _is_lost(self, now_s: float) -> bool:
        unheard = self._keeper.keeps and now_s - self._keeper.heard_s > LOST_S
        return unheard or self._master.silent_s() > LOST_S

    async def _is_due(self, now_s: float) -> bool:
        keeper = self._keeper
        if self._fails or now_s - self._tried_s < ASK_S:
            return False
        others = [seat.name for seat in keeper.seats.now if seat.name != keeper.leader]
        rank_s = RANK_S * (others.index(keeper.seat) if keeper.seat in others else 0)
        if not keeper.is_due(now_s, DEAD_S + rank_s):
            return False
        self._tried_s = now_s
        host = self._newest.address.rpartition(":")[0]
        wait_s = DEAD_S
        if await answers(host):
            life = self._ground.life if self._ground is not None else ""
            wait_s = BUSY_S if life and await listens(life) else SILENT_S
        # It may have heard a master meanwhile, or voted for one.
        return keeper.is_due(time.monotonic(), wait_s + rank_s)

    async def _stand(self) -> None:
        """Ask for the votes of the others; start the next master once they are there."""
        keeper = self._keeper
        others = keeper.seats.others(keeper.seat)
        if self._voters is None:
            self._voters = Keepers(self._job.secret(), self._job.authority_pem())
        for ask in (keeper.trial, keeper.campaign):
            asked = ask()
            has_won = partial(self._has_won, asked)
            if not has_won(await self._voters.votes(others, asked, has_won)):
                _log.info("not_elected node=%s term=%d", self._node, asked.term)
                self._voters.hurried()
                await self._ask()  # they may have voted for another one, which is there
                return
        assert self._ground is not None
        unheard_s = time.monotonic() - keeper.heard_s
        _log.warning("elected node=%s term=%d after_s=%.1f", self._node, keeper.term, unheard_s)
        lost_s = time.time() - unheard_s
        taken = TakenOver(before=self._ground.host, lost_s=lost_s, beside=self._beside)
        keeper.has_left = True  # its seat is the master's now
        self._newest = MasterIs(term=keeper.term)
        try:
            self._next = await asyncio.to_thread(
                take_over, self._job, self._spec, self._ground, keeper, taken
            )
        except (PacelineError, OSError) as error:
            # No master has begun this term, so it may vote for another one.
            _log.warning("no_master_here node=%s error=%s", self._node, error)
            keeper.has_left, keeper.heard_s, self._fails = False, time.monotonic(), True

    def _has_won(self, asked: AskVote, answers: list[VoteIs]) -> bool:
        return self._keeper.has_won(asked, answers, time.monotonic())

    def _look_for_next(self, following: JobDir) -> None:
        """Go to the master that was started here, once it listens."""
        with contextlib.suppress(FileNotFoundError):
            address = following.master_address.read_text().strip()
            self._next, self._found_s = None, time.monotonic()
            host = socket.gethostname()
            self._follow(MasterIs(term=self._keeper.term, address=address, host=host))

    async def _ask(self) -> None:
        keepers = Keepers(self._job.secret(), self._job.authority_pem())
        others = self._seats.others(self._keeper.seat)
        found = await keepers.master(others)
        if found is not None and found.term >= self._newest.term:
            self._follow(found)

    def _follow(self, found: MasterIs) -> None:
        """Go to a master, if it is another one than that of this agent."""
        self._newest = found
        if self._job.master_address.read_text().strip() != found.address:
            _log.warning("master_moved node=%s address=%s", self._node, found.address)
            write_file(self._job.master_address, f"{found.address}\n".encode())
            self._master.drop()
