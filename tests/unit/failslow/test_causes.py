"""Each cause of slowness is recognised from facts, and explained on the page."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from paceline.features.failslow.events import Culprit, DiagnosedEvent, RestartAdvisedEvent
from paceline.features.failslow.policy.advice import RestartAdvice
from paceline.features.failslow.policy.causes import CAUSES, SlowCase, cause_of
from paceline.features.failslow.policy.detection import PaceChange, Shift, StepFact
from paceline.features.failslow.policy.gaps import Gaps, NotMeasured
from paceline.features.failslow.policy.suspects import BusyMachine, Findings, Suspect
from paceline.features.failslow.policy.validation import SlowComponent, ValidationResult
from tests.unit.failslow.script import COMPUTE_S, Script

PAGE = Path(__file__).parents[3] / "docs/howto/failslow.md"
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
PRODUCT = SlowComponent(
    kind="computation", ranks=(2,), seconds=2.0, reference_s=1.0, against="baseline"
)
TRANSFER = SlowComponent(
    kind="link", ranks=(0, 1), seconds=3.0, reference_s=1.0, against="baseline"
)
WELL = ValidationResult(well=((0,), (1,), (2,), (3,), (0, 1)))
PLAIN = SlowCase(Findings(), WELL, Gaps(), {rank: f"worker-{rank}" for rank in range(4)})
OF_RANK = PLAIN._replace(suspect=RANK)
CROWDED = BusyMachine(machine="a3", ranks=(0, 1, 2), starved_s=0.043, start_s=0.005)

CASES: dict[str, tuple[SlowCase, str]] = {
    "cut_quota": (
        OF_RANK._replace(suspect=replace(RANK, throttled_s=0.15)),
        "its cpu quota is used up, which somebody has lowered: raise it again",
    ),
    "unmeasured_device": (
        OF_RANK._replace(result=None, gaps=Gaps(not_measured=NotMeasured.ALONE)),
        "not measured:",
    ),
    "busy_elsewhere": (
        OF_RANK._replace(by_itself=PRODUCT, result=replace(WELL, products={0: 1.9, 1: 2.0})),
        "times elsewhere, too: the machine is busy",
    ),
    "slow_device": (OF_RANK._replace(by_itself=PRODUCT), "times as long, too"),
    "not_its_device": (OF_RANK, "its device multiplies well"),
    "uncompared_device": (
        OF_RANK._replace(result=ValidationResult()),
        "how its device multiplies is not known",
    ),
    "slow_link": (PLAIN._replace(suspect=LINK, by_itself=TRANSFER), "measured by itself"),
    "busy_machine": (
        PLAIN._replace(findings=Findings(busy=(CROWDED,))),
        "see what else runs there, or takes their quotas",
    ),
    "shared": (PLAIN._replace(findings=Findings(shared=2.0)), "most ranks compute longer"),
    "over": (PLAIN._replace(findings=Findings(recovered=(1,))), "the slowness is over"),
    "transfers": (PLAIN._replace(findings=Findings(suspects=(LINK,))), "their links measure well"),
    "unknown": (PLAIN, "stands out in the calls that were compared"),
}
"""By cause: a case of it, and words of its evidence, which the page has, too."""


def test_every_cause_has_a_case() -> None:
    assert CASES.keys() == CAUSES.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_cause_is_recognised_from_facts_and_explained_on_the_page(name: str) -> None:
    case, words = CASES[name]
    cause, evidence = cause_of(CAUSES[name].culprit, case)
    assert cause.name == name
    assert words in evidence
    assert words in PAGE.read_text()


def advised(found: DiagnosedEvent) -> list[RestartAdvisedEvent]:
    advice = RestartAdvice({f"worker-{rank}": rank for rank in range(4)}, 0.0)
    advice.made(1.0, saved=False)
    advice.changed(
        PaceChange(
            shift=Shift.ONSET,
            slow=True,
            since_step=10,
            since_s=90.0,
            found_step=11,
            found_s=99.0,
            before_s=1.0,
            after_s=9.0,
        )
    )
    advice.diagnosed([found])
    told = []
    for number in range(12, 40):
        fact = StepFact(number=number, end_s=9.0 * number, took_s=9.0)
        advice.made(fact.end_s, saved=True)
        told += [one for one in advice.step(fact, 8.0) if isinstance(one, RestartAdvisedEvent)]
    return told


@pytest.mark.parametrize("name", CASES)
def test_a_restart_is_advised_where_it_relieves_the_cause(name: str) -> None:
    cause = CAUSES[name]
    nodes: dict[Culprit, tuple[str, ...]] = {
        "computation": ("worker-2",),
        "link": ("worker-0", "worker-1"),
        "nothing": (),
    }
    told = advised(
        DiagnosedEvent(culprit=cause.culprit, cause=name, nodes=nodes[cause.culprit], ratio=2.0)
    )
    helps = cause.relieved_as != "unknown"
    assert [one.nodes for one in told] == ([nodes[cause.culprit]] if helps else [])


@pytest.mark.parametrize(("throttled_s", "is_cause"), [(0.0, False), (0.09, False), (0.1, True)])
def test_a_cut_quota_is_the_cause_if_it_accounts_for_half_of_the_slowness(
    throttled_s: float, is_cause: bool
) -> None:
    case = OF_RANK._replace(suspect=replace(RANK, throttled_s=throttled_s), by_itself=PRODUCT)
    cause, _ = cause_of("computation", case)
    assert cause.name == ("cut_quota" if is_cause else "slow_device")


def test_a_rank_whose_quota_somebody_lowers_is_named_with_that_cause() -> None:
    script = Script()
    script.run(200)
    script.compute_s[2] *= 2
    script.starved_s[2] = script.throttled_s[2] = COMPUTE_S
    script.run(40)
    found = script.diagnosis()
    assert (found.nodes, found.cause, found.busy) == (("worker-2",), "cut_quota", False)
    assert "for 200 ms of a step its cpu quota is used up" in found.evidence
