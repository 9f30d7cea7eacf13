"""How jobs share a device, as values: classes of jobs, modes of a gate, decisions in words."""

import enum
from typing import Literal, assert_never

import msgspec

ShareClass = Literal["guaranteed", "opportunistic", "auto"]


class GateMode(enum.IntEnum):
    """What a gate does to its job."""

    OFF = 0
    DUTY = 1
    """The job uses a part of the device's time: the duty."""
    GAP = 2
    """The same, and only while the guaranteed job is idle, as far as that can be waited for."""
    PAUSE = 3
    """The job waits."""


SharingCause = Literal[
    "arrival", "newcomer", "steady", "measured", "within", "over", "harm", "unstable", "regime",
    "again", "gaps", "departure",
]  # fmt: skip
"""Why the device coordinator decides something."""


class SharingDecision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the opportunistic jobs of a device may do from now on, and why."""

    cause: SharingCause
    mode: GateMode
    duty: float = 1.0
    """The part of the device's time that each of them may use."""
    guaranteed: str = ""
    """The job whose time is kept; empty: there is none."""
    num_others: int = 0
    """Opportunistic jobs."""
    step_s: float = 0.0
    """What a step of the guaranteed job took last."""
    alone_s: float = 0.0
    """What it takes while all others wait; 0: not measured."""
    budget: float = 0.0
    """By so much it may take longer."""

    @property
    def loss(self) -> float:
        """By what part a step takes longer than alone."""
        return self.step_s / self.alone_s - 1.0 if self.alone_s else 0.0

    @property
    def allowed(self) -> str:
        """What the opportunistic jobs may do, in words."""
        match self.mode:
            case GateMode.OFF:
                return "no limit"
            case GateMode.DUTY:
                return f"{self.duty:.0%} of the device"
            case GateMode.GAP:
                return f"{self.duty:.0%} of the device, in the gaps"
            case GateMode.PAUSE:
                return "paused"
            case _:
                assert_never(self.mode)

    @property
    def why(self) -> str:  # noqa: C901
        """The cause in words."""
        name, alone = self.guaranteed, f"{self.alone_s * 1e3:.3g} ms alone"
        now = (
            f"a step of {name} takes {self.step_s * 1e3:.3g} ms ({alone}, {self.loss:+.1%}, "
            f"budget {self.budget:.0%})"
        )
        match self.cause:
            case "arrival":
                return f"{name} is there, and does not run steadily yet"
            case "newcomer":
                return f"another job has come to share what {name} leaves"
            case "steady":
                return f"{name} runs steadily: it is measured alone"
            case "measured":
                return f"a step of {name} takes {alone}"
            case "within" | "over" | "harm":
                return now
            case "unstable":
                return f"steps of {name} vary: nothing is raised"
            case "regime":
                return f"{now}, which sharing does not explain: it is measured alone again"
            case "again":
                return f"{name} was measured long ago: it is measured alone again"
            case "gaps":
                gap = "says when it is idle" if self.mode is GateMode.GAP else "no longer says so"
                return f"{name} {gap}"
            case "departure":
                return "no guaranteed job shares the device"
            case _:
                assert_never(self.cause)
