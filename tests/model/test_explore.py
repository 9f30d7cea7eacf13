"""The machines of the integrity protocol keep their promises in every interleaving of a small job.

Larger bounds: ``python -m tests.model.explore --help``; what was run is in
docs/protocols/integrity-explored.md.
"""

from typing import Any

import pytest

from .bounds import Bounds
from .explore import Explorer
from .flaws import FLAWS, Flaw


def planned(**bounds: Any) -> Bounds:
    """Steps of one sample; who computes the second one changes."""
    job = {"mode": "bsp", "samples": 2, "slice": 1, "workers": 1, "servers": 1, "cuts": 0}
    return Bounds(**{**job, "plans": 1, **bounds})


def short(**bounds: Any) -> Bounds:
    """Of a step of two samples one may be left out; the second step is of one sample."""
    return planned(**{"samples": 3, "slice": 2, "plans": 0, "left_out": 1, **bounds})


def scaled(**bounds: Any) -> Bounds:
    """One sample, one worker; the number of servers changes once."""
    few = {"samples": 1, "workers": 1, "servers": 1, "cuts": 0, "moves": 1, "joins": 0, "leaves": 0}
    return Bounds(**{**few, **bounds})


def hurt(kind: str, **bounds: Any) -> Bounds:
    """A change of servers that begins first, with one death in it, and no sample granted in it."""
    one = {"moves_first": True, "fails_in_moves": True, "rests_in_moves": True}
    return scaled(**{**one, "failures": 1, "kinds": (kind,), **bounds})


OUT, IN = {"joins": 2}, {"servers": 2, "leaves": 1}
"""One server becomes three, and two become one."""
CLEAN = {
    "asp, a cut, no failure": Bounds(samples=2, cuts=1),
    "asp, one worker dies": Bounds(samples=1, cuts=0, failures=1, kinds=("worker",)),
    "asp, one worker is taken for dead": Bounds(
        samples=1, cuts=0, failures=1, kinds=("suspect-worker",)
    ),
    "asp, a server dies or is taken for dead, with a cut": Bounds(
        samples=1, cuts=1, failures=1, kinds=("server", "suspect-server")
    ),
    "asp, the master dies": Bounds(samples=1, cuts=0, failures=1, kinds=("master",)),
    "asp, server and master die, nothing is reduced": Bounds(
        samples=1,
        workers=1,
        servers=1,
        cuts=0,
        failures=2,
        kinds=("server", "master"),
        reduce=False,
    ),
    "asp, a server is replaced": Bounds(samples=1, workers=1, servers=1, cuts=0, moves=1),
    "bsp, a server is replaced": Bounds(
        mode="bsp", samples=1, slice=1, workers=1, servers=1, cuts=0, moves=1
    ),
    "asp, a server joins": scaled(joins=1),
    "asp, a server leaves": scaled(servers=2, leaves=1),
    "asp, a server joins, servers die": scaled(joins=1, failures=1, kinds=("server",)),
    "asp, two servers join one, a server dies": hurt("server", **OUT),
    "asp, two servers join one, the worker dies": hurt("worker", **OUT),
    "asp, two servers join one, the master dies": hurt("master", **OUT),
    "asp, one of two servers leaves, a server dies": hurt("server", **IN),
    "asp, one of two servers leaves, the worker dies": hurt("worker", **IN),
    "asp, one of two servers leaves, the master dies": hurt("master", **IN),
    "asp, one of two servers leaves at any moment, a server dies": hurt(
        "server", moves_first=False, **IN
    ),
    "asp, one of two servers leaves at any moment, the master dies": hurt(
        "master", moves_first=False, **IN
    ),
    "asp, one of two servers leaves while a worker trains, a server dies": hurt(
        "server", rests_in_moves=False, **IN
    ),
    "asp, a lease is shared at the tail": Bounds(samples=3, leases=(3,), cuts=0),
    "asp, a lease is shared at the tail, a worker dies": Bounds(
        samples=3, leases=(3,), servers=1, cuts=0, failures=1, kinds=("worker",)
    ),
    "bsp, no failure": Bounds(mode="bsp", samples=2, cuts=0),
    "bsp, one worker dies": Bounds(mode="bsp", samples=2, cuts=0, failures=1, kinds=("worker",)),
    "bsp, a server dies, with a cut": Bounds(
        mode="bsp", samples=2, slice=1, workers=1, cuts=1, failures=1, kinds=("server",)
    ),
    "bsp, two plans, in time and too late": planned(plans=2, leads=(0, 1)),
    "bsp, a plan gives one worker what the other has": planned(slice=2, workers=2, leads=(0,)),
    "bsp, short steps": Bounds(mode="bsp", servers=1, cuts=0, left_out=1),
    "bsp, short steps after a grace": Bounds(mode="bsp", servers=1, cuts=0, in_grace=1),
    "bsp, short steps after a grace, the worker dies": short(
        left_out=0, in_grace=1, failures=1, kinds=("worker",)
    ),
    "bsp, short steps after a grace, the master dies": short(
        left_out=0, in_grace=1, failures=1, kinds=("master",)
    ),
    "bsp, short steps, the worker dies": short(failures=1, kinds=("worker",)),
    "bsp, short steps, the master dies": short(failures=1, kinds=("master",)),
    "bsp, short steps, a server dies, with a cut": short(failures=1, kinds=("server",), cuts=1),
    "bsp, short steps and a plan": short(plans=1),
    "bsp, a plan, the master dies": planned(failures=1, kinds=("master",)),
    "bsp, a plan, a server dies": planned(failures=1, kinds=("server",)),
}


LARGE = (
    "asp, a cut, no failure",
    "bsp, short steps",
    "asp, a server joins",
    "asp, a server leaves",
    "asp, a server joins, servers die",
    "asp, two servers join one, the worker dies",
    "asp, one of two servers leaves at any moment, a server dies",
    "asp, one of two servers leaves at any moment, the master dies",
    "asp, one of two servers leaves while a worker trains, a server dies",
    "bsp, short steps after a grace",
    "bsp, a plan, the master dies",
    "bsp, one worker dies",
    "bsp, a server is replaced",
    "bsp, a plan gives one worker what the other has",
    "asp, a server dies or is taken for dead, with a cut",
    "bsp, short steps, a server dies, with a cut",
    "bsp, short steps after a grace, the worker dies",
    "bsp, short steps, the worker dies",
    "bsp, a server dies, with a cut",
    "bsp, short steps, the master dies",
    "asp, the master dies",
    "asp, server and master die, nothing is reduced",
    "asp, one worker is taken for dead",
    "bsp, no failure",
)
"""They take five seconds of one free core, or more, or are much like others."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.soak] * (name in LARGE)) for name in CLEAN],
)
def test_no_interleaving_breaks_an_invariant(name: str) -> None:
    result = Explorer(CLEAN[name], finish_every=31).run()

    assert not result.violation, "\n".join([*result.trace, result.violation])
    assert result.complete
    assert result.states > 100, "the bounds let hardly anything happen"


SLOW_FLAWS = ("cuts of two epochs share a directory",)
"""Found after 20 s: of the long suite."""


@pytest.mark.parametrize(
    "flaw",
    [pytest.param(flaw, marks=[pytest.mark.soak] * (flaw.name in SLOW_FLAWS)) for flaw in FLAWS],
    ids=lambda flaw: flaw.name,
)
def test_a_planted_flaw_is_found(flaw: Flaw) -> None:
    result = Explorer(
        flaw.bounds, flaw.machines, max_states=flaw.max_states, finish_every=int(flaw.finish)
    ).run()

    assert result.violation, f"{result.states} states and nothing was found"
    assert result.violation[0] in flaw.finds, result.violation


def test_the_same_search_visits_the_same_states() -> None:
    bounds = Bounds(samples=1, cuts=0)

    first, again = Explorer(bounds).run(), Explorer(bounds).run()

    assert (first.states, first.transitions) == (again.states, again.transitions)
    assert first.states > 100
