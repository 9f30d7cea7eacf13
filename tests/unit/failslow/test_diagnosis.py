"""A diagnosis says how far it was looked: each reason has its sentence."""

import msgspec
import pytest

from paceline.features.failslow.events import DiagnosedEvent, StartUnseenEvent
from paceline.features.failslow.policy.diagnosis import diagnose
from paceline.features.failslow.policy.gaps import Gaps, NotMeasured, NotProfiled
from paceline.features.failslow.policy.suspects import BusyMachine, Findings, Suspect
from paceline.features.failslow.policy.validation import SlowComponent, ValidationResult
from paceline.features.failslow.wire import Measure, NodeSpeed
from tests.unit.failslow.script import Script

NAMES = {rank: f"worker-{rank}" for rank in range(4)}
RANK = Suspect(
    kind="computation",
    ranks=(2,),
    seconds=0.4,
    reference_s=0.2,
    start_s=0.2,
    against="baseline",
    lost=0.4,
)
LINK = Suspect(
    kind="link", ranks=(0, 1), seconds=0.2, reference_s=0.05, against="baseline", lost=0.4
)
SLOW_LINK = SlowComponent(
    kind="link", ranks=(0, 1), seconds=1.5, reference_s=1.0, against="baseline"
)
CROWDED = BusyMachine(machine="a3", ranks=(0, 1, 2), starved_s=0.043, start_s=0.005)
WELL = ValidationResult(well=((0,), (1,), (2,), (3,), (0, 1)))
TRANSFERS = "the transfers of worker-0 - worker-1 take 4.00 times as long"
NOBODY = "no rank and no group stands out in the calls that were compared"


def said(
    findings: Findings, result: ValidationResult | None, gaps: Gaps | None = None
) -> DiagnosedEvent:
    (found,) = diagnose(findings, result, NAMES, gaps or Gaps(), at_start=False)
    return found


@pytest.mark.parametrize("why", NotMeasured)
@pytest.mark.parametrize(
    ("findings", "before"),
    [
        (Findings(suspects=(LINK,)), f"{TRANSFERS}, but their links were not measured: "),
        (
            Findings(suspects=(RANK,)),
            "400 ms a step, 200 ms at the job's start; its device was not measured: ",
        ),
        (Findings(), f"{NOBODY}; nothing was measured by itself: "),
    ],
)
def test_why_nothing_was_measured_is_said(
    findings: Findings, before: str, why: NotMeasured
) -> None:
    assert said(findings, None, Gaps(not_measured=why)).evidence == f"{before}{why}"


@pytest.mark.parametrize("why", NotProfiled)
def test_why_no_calls_were_compared_is_said(why: NotProfiled) -> None:
    gaps = Gaps(not_profiled=why)
    assert said(Findings(), WELL, gaps).evidence == (
        f"the calls of the ranks were not compared: {why}; what was measured by itself measures "
        "well"
    )


@pytest.mark.parametrize(
    ("findings", "result", "gaps", "sentence"),
    [
        (
            Findings(shared=2.0),
            WELL,
            Gaps(),
            "most ranks compute longer, 2.00 times in the middle; see what they share, as a "
            "machine or the storage of data",
        ),
        (
            Findings(busy=(CROWDED,), shared=2.0, suspects=(LINK,)),
            WELL,
            Gaps(),
            "most ranks on a3 wait 43 ms of a step for a processor, 5 ms at the job's start; see "
            "what else runs there, or takes their quotas",
        ),
        (
            Findings(suspects=(LINK,)),
            WELL,
            Gaps(),
            f"{TRANSFERS}, but their links measure well: the slowness was over before it could be "
            "measured, or comes and goes",
        ),
        (
            Findings(suspects=(LINK,)),
            msgspec.structs.replace(WELL, slow=(SLOW_LINK,)),
            Gaps(),
            f"{TRANSFERS}; measured by itself, worker-0 - worker-1 transfers 1.50 times as long, "
            "which does not account for it",
        ),
        (
            Findings(suspects=(LINK,)),
            WELL,
            Gaps(unseen={1: "was not measured: OSError"}),
            f"{TRANSFERS}, but not all of their links could be measured",
        ),
        (
            Findings(suspects=(LINK,)),
            ValidationResult(well=((0,), (1,))),
            Gaps(),
            f"{TRANSFERS}, but not all of their links could be measured",
        ),
        (Findings(), WELL, Gaps(), f"{NOBODY}; what was measured by itself measures well"),
        (
            Findings(),
            ValidationResult(slow=(SLOW_LINK,)),
            Gaps(),
            f"{NOBODY}; measured by itself, worker-0 - worker-1 transfers 1.50 times as long, "
            "which may be by chance",
        ),
        (
            Findings(suspects=(RANK,)),
            WELL,
            Gaps(),
            "400 ms a step, 200 ms at the job's start; its device multiplies well, so see its "
            "input, its code and its host",
        ),
        (
            Findings(suspects=(RANK,)),
            ValidationResult(well=((0,),)),
            Gaps(),
            "400 ms a step, 200 ms at the job's start; how its device multiplies is not known",
        ),
    ],
)
def test_words_claim_what_was_checked(
    findings: Findings, result: ValidationResult, gaps: Gaps, sentence: str
) -> None:
    assert said(findings, result, gaps).evidence == sentence


def test_a_rank_that_was_not_seen_is_named_with_its_words() -> None:
    gaps = Gaps(absent=(3,), unseen={1: "told none of its calls"}).and_unseen({1: "was not well"})
    assert said(Findings(), WELL, gaps).missing == (
        "; did not come to be measured: worker-3; worker-1 told none of its calls and was not well"
    )


class Failing(Script):
    """A rank whose measurement fails from a moment on."""

    fails: int | None = None

    def _speed(self, rank: int, order: Measure) -> NodeSpeed | None:
        return None if rank == self.fails else super()._speed(rank, order)

    def _error(self, rank: int) -> str:
        return "RuntimeError: no\n socket" if rank == self.fails else ""


def test_a_rank_whose_measurement_failed_is_named_with_its_error() -> None:
    script = Failing()
    script.run(200)
    script.fails = 2
    script.compute_s[2] *= 2
    script.run(40)
    found = script.diagnosis()
    assert found.unseen == {"worker-2": "was not measured: RuntimeError: no socket"}
    assert "multiplies well" not in found.evidence


@pytest.mark.parametrize("why", ["absent", "late", "failed", "silent"])
def test_what_is_not_known_of_the_start_is_said_once(why: str) -> None:
    script = Failing()
    match why:
        case "absent":
            script.comes.discard(3)
        case "late":
            script.lateness = 10**6
        case "failed":
            script.fails = 1
        case _:
            script.answers.discard(1)
    script.run(400)
    (event,) = script.events
    assert isinstance(event, StartUnseenEvent)
    assert event.reason.endswith(
        {
            "absent": "did not come to be measured: worker-3",
            "late": "went past the step at which all should meet",
            "failed": "worker-1 was not measured: RuntimeError: no socket",
            "silent": "worker-1 told none of its calls",
        }[why]
    )


@pytest.mark.parametrize(("lost", "named"), [(0.2, 2), (0.05, 1)])
def test_a_link_that_costs_little_beside_the_slowest_one_is_not_named(
    lost: float, named: int
) -> None:
    other = msgspec.structs.replace(LINK, ranks=(2, 3), lost=lost)
    slow = (SLOW_LINK, msgspec.structs.replace(SLOW_LINK, ranks=(2, 3)))
    # Both measure slow enough for what their transfers took.
    slow = tuple(msgspec.structs.replace(one, seconds=3.0) for one in slow)
    result = ValidationResult(slow=slow)
    found = diagnose(Findings(suspects=(LINK, other)), result, NAMES, Gaps(), at_start=False)
    assert len(found) == named
    assert found[0].nodes == ("worker-0", "worker-1")


def test_the_links_of_a_rank_that_was_short_of_a_processor_are_not_blamed() -> None:
    slow = msgspec.structs.replace(SLOW_LINK, seconds=3.0)
    later = Findings(suspects=(LINK,)).after(
        Findings(suspects=(msgspec.structs.replace(RANK, ranks=(1,)),))
    )
    found = said(later, ValidationResult(slow=(slow,)))
    assert found.culprit == "nothing"
    assert found.evidence.startswith("worker-1 computed longer, and does no more")
    other = Findings(suspects=(LINK,)).after(Findings(suspects=(RANK,)))
    assert said(other, ValidationResult(slow=(slow,))).culprit == "link"
