"""Ways for the workers of a job to begin: each on its own, or in rounds that meet at a port."""

from paceline.base.interfaces import free_port
from paceline.protocol.nodes.rounds import Rounds
from paceline.wire.spec import JobSpec

NO_PORT = -1
"""The port of a round whose workers meet without one."""


def find_port(spec: JobSpec) -> int:
    """A port that nobody listens at; until it is used somebody might, which ends that round."""
    if not spec.traits.round_port:
        return NO_PORT
    return free_port(spec.listen)


def make_rounds(spec: JobSpec) -> Rounds | None:
    """Make the rounds of a job whose workers start and restart together; None: it has none."""
    if spec.traits.lives == "singly":
        return None
    stop_s = spec.timeouts.derived(None).stop_s or 0.0
    return Rounds(
        # What a member holds is of no use without the others': nobody waits for its end.
        grace_s=stop_s if spec.traits.round_port else 0.0,
        by_itself=not spec.traits.trains,
        machines=spec.machines,
        anywhere=spec.backend != "local",
        meets=spec.traits.round_port,
    )
