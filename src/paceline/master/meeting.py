"""Ways for the workers of a job to begin: each on its own, or in rounds that meet at a port."""

import socket

from paceline.protocol.nodes.rounds import Rounds
from paceline.wire.spec import JobSpec

NO_PORT = -1
"""The port of a round whose workers meet without one."""


def find_port(spec: JobSpec) -> int:
    """A port that nobody listens at; until it is used somebody might, which ends that round."""
    if not spec.traits.round_port:
        return NO_PORT
    with socket.socket() as probe:
        probe.bind((spec.listen, 0))
        return int(probe.getsockname()[1])


def make_rounds(spec: JobSpec) -> Rounds | None:
    """Make the rounds of a job whose workers start and restart together; None: it has none."""
    if spec.traits.lives == "singly":
        return None
    if spec.traits.round_port:
        stop_s = spec.timeouts.derived(None).stop_s or 0.0
        return Rounds(grace_s=stop_s)
    # What a member holds is of no use without the others': nobody waits for its end.
    return Rounds(grace_s=0.0, by_itself=False)
