"""What a thousand nodes cost a master's processor: forming, training, a status, a death.

    python benchmarks/master_scale.py [--quick] [--sizes 100 300 1000] [--pure 10000] [--seconds 10]

A real master process; another process speaks for all nodes, each over a connection of its own, with
all-reduce: hello, joining, stopping, progress, reports (`paceline_experiments.fleet`). Figures are
seconds of the master's processor, by the kernel, beyond what it takes at the same time anyway. The
second table has the pure machines alone, without sockets. Prints tables, then JSON.
"""

import asyncio
import time
from collections.abc import Sequence

from paceline_experiments import harness
from paceline_experiments.fleet import costs_of, fleet_master

from paceline.base import descriptors
from paceline.base.numbering import Inc, StepNo
from paceline.base.samples import Span
from paceline.protocol.acts import Instruction, Send
from paceline.protocol.holding.group.formation import Formation
from paceline.wire.messages.group import NO_STEP, CatchUp, GroupStopped, JoinGroup

FORMING_S, STEADY, STATUS_S = 1.0, 0.25, 0.5
"""Floors at 1,000 nodes."""


async def real(sizes: Sequence[int], seconds: float) -> list[dict[str, float]]:
    """Measure master processes, one after the other; gRPC wants one event loop for all."""
    found = []
    for size in sizes:
        with harness.bare_job(f"fleet-{size}") as job, fleet_master(job, size) as master:
            costs = await costs_of(master, size, seconds)
        found.append({name: round(value, 3) for name, value in costs._asdict().items()})
        print(found[-1], flush=True)
    return found


class PureGroup:
    """The machine that forms groups, with members that answer at once."""

    def __init__(self, size: int) -> None:
        self.group, self.size = Formation(), size
        self.num_messages = 0

    def form(self) -> None:
        """Have all join, and begin with nothing."""
        for inc in range(1, self.size + 1):
            word = JoinGroup(inc=Inc(inc), address=f"tcp://10.0.0.1:{inc}", replica="r")
            self._heard(self.group.join(word, f"worker-{inc - 1}", expected=self.size))
        for inc in range(1, self.size + 1):
            self._stopped(Inc(inc), NO_STEP)
        self._answer(self.group.restore(None))
        assert self.group.running

    def lose(self) -> None:
        """Have one die in mid-step: half of the others are a step behind, and copy it."""
        said = self.group.leave(Inc(1))
        self._heard(said)
        for member in self.group.members:
            self._stopped(member.inc, StepNo(100 + member.inc % 2))
        assert self.group.running

    def _stopped(self, inc: Inc, step: StepNo) -> None:
        said = GroupStopped(
            epoch_no=self.group.epoch_no,
            inc=inc,
            group=self.group.number,
            step=step,
            committed=(Span(0, 0, 64 * step),) if step > 0 else (),
        )
        self._answer(self.group.stopped_said(said))

    def _answer(self, done: list[Instruction]) -> None:
        for one in self._heard(done):
            if isinstance(one.message, CatchUp):
                self._stopped(one.inc, one.message.step)

    def _heard(self, done: list[Instruction]) -> list[Send]:
        sent = [one for one in done if isinstance(one, Send)]
        self.num_messages += len(sent)
        return sent


def pure(size: int) -> dict[str, float]:
    """Measure the pure machine."""
    job, begun_s = PureGroup(size), time.process_time()
    job.form()
    formed_s, num_messages = time.process_time(), job.num_messages
    job.lose()
    return {
        "members": size,
        "forming_s": round(formed_s - begun_s, 3),
        "messages": num_messages,
        "death_s": round(time.process_time() - formed_s, 3),
        "messages_of_death": job.num_messages - num_messages,
    }


def main() -> int:
    parser = harness.parser(__doc__, "20 nodes for 1 s, and 100 in the pure machine")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1_000])
    parser.add_argument("--pure", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.pure, options.seconds = [20], [100], 1.0
    descriptors.raise_limit()
    found = asyncio.run(real(options.sizes, options.seconds))
    machines = [pure(size) for size in options.pure]
    for row in machines:
        print(row, flush=True)
    large = [row for row in found if row["nodes"] == 1_000]
    met = all(
        row["forming_s"] <= FORMING_S
        and row["death_s"] <= FORMING_S
        and row["steady"] <= STEADY
        and row["status_s"] <= STATUS_S
        for row in large
    )
    harness.report("master_scale", {"real": found, "pure": machines}, file=options.json)
    return 0 if met or options.quick else 1


if __name__ == "__main__":
    harness.run(main)
