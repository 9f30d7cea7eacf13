"""Outcome of a run of a job."""

import msgspec


class Acted(msgspec.Struct, frozen=True, kw_only=True):
    """One action that was carried out."""

    at_s: float
    step: int
    action: str
    node: str = ""
    reason: str = ""


class Sight(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One report of one node, for drawing."""

    at_s: float
    node: str
    steps: int
    batch_size: float
    compute_s: float
    server_s: float
    bpt_s: float


class SimOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one run. Times are those of the job's own clock."""

    jct_s: float
    samples: int
    """Samples in the model at the end, over all epochs."""
    steps: int
    """Synchronous: steps; asynchronous: contributions."""
    short_steps: int = 0
    """Decided without some of their samples, or holding what others left out."""
    left_out: int = 0
    """Samples that came back later, counted each time."""
    redone: int = 0
    """Samples that restarts have made somebody compute again; of real jobs also what came too late
    for a short step."""
    restarts: int = 0
    ledger_calls: int = 0
    """Number of calls of the master's ledger: grants, returns, and the leader's reports of what is
    in the model."""
    reports: int = 0
    decisions: int = 0
    shares: dict[str, int] = {}
    """Samples that each worker has put into the model."""
    acted: tuple[Acted, ...] = ()
    trail: tuple[Sight, ...] = ()
    """Empty unless asked for."""
