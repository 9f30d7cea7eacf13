"""Members of an all-reduce group and the master keep their promises in every interleaving.

Larger bounds: ``python -m tests.model.explore_group --help``.
"""

import pytest

from .explore_group import GroupExplorer
from .group_bounds import DIFFER, Bounds
from .group_flaws import FLAWS, Flaw

CLEAN = {
    "from the start, one failure": Bounds(failures=1, begun=False),
    "two failures, one slice": Bounds(slices=1, failures=2),
    "a member dies, three slices": Bounds(slices=3, failures=1, kinds=("member",)),
    "slices of two samples, a collective breaks": Bounds(slice=2, failures=1, kinds=("break",)),
    "a member differs from the others": Bounds(failures=1, kinds=(DIFFER,)),
    "a member differs, another comes": Bounds(slices=1, failures=1, kinds=(DIFFER,), joiners=1),
    "a member differs, and something else happens": Bounds(
        slices=1, failures=2, kinds=(DIFFER, "member", "break", "leave")
    ),
    "a member comes": Bounds(joiners=1),
    "two members come to one": Bounds(members=1, joiners=2),
    "one comes, the other dies": Bounds(members=1, slices=1, joiners=1, failures=1),
    "a member of another machine comes, one dies": Bounds(
        members=1, joiners=1, distant=True, failures=1, kinds=("member", "suspect", "break")
    ),
    "two of other machines come, the first dies": Bounds(
        members=1, slices=1, joiners=2, distant=True, failures=1, kinds=("member",)
    ),
    "a member comes while one feed follows another": Bounds(slices=1, feeds=2, joiners=1),
    "a member comes while scripts end": Bounds(slices=1, joiners=1, returns=True),
    "two feeds, one failure": Bounds(slices=1, feeds=2, failures=1),
    "scripts end, one failure": Bounds(failures=1, returns=True),
    "three members, one slice, one failure": Bounds(members=3, slices=1, failures=1),
    "a step follows its members, one failure": Bounds(slices=3, per_worker=True, failures=1),
    "a step follows its members, one comes": Bounds(slices=3, per_worker=True, joiners=1),
    "nothing is reduced": Bounds(slices=1, failures=1, reduce=False),
    "nothing is reduced, from the start": Bounds(slices=1, begun=False, reduce=False),
}


LARGE = (
    "two of other machines come, the first dies",
    "a member differs, another comes",
    "three members, one slice, one failure",
    "two failures, one slice",
    "two members come to one",
)
"""Of the long suite."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.soak] * (name in LARGE)) for name in CLEAN],
)
def test_no_interleaving_breaks_an_invariant(name: str) -> None:
    result = GroupExplorer(CLEAN[name], finish_every=7).run()

    assert not result.violation, "\n".join([*result.trace, result.violation])
    assert result.complete


@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.name)
def test_a_planted_flaw_is_found(flaw: Flaw) -> None:
    result = GroupExplorer(
        flaw.bounds, flaw.machines, max_states=40_000, finish_every=int(flaw.finish)
    ).run()

    assert result.violation, f"{result.states} states and nothing was found"
    assert result.violation[0] in flaw.finds, result.violation


def test_the_same_search_visits_the_same_states() -> None:
    bounds = Bounds(failures=1)

    first, again = (GroupExplorer(bounds, finish_every=0).run() for _ in range(2))

    assert (first.states, first.transitions) == (again.states, again.transitions)
    assert first.states > 100
