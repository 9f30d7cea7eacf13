"""Places that are reserved together: which node has one, and when all are given back."""

from typing import Any

import msgspec
import pytest

from paceline.backends.ray.messages import Want
from paceline.wire.places import AskedPlace
from paceline.wire.spec import NodeSize

pytest.importorskip("ray")

from paceline.backends.ray import gang as gangs
from paceline.backends.ray.gang import Gang
from paceline.backends.ray.launcher import AgentStarted

HALF = AskedPlace(size=NodeSize(cpu=0.5))
WHOLE = AskedPlace(size=NodeSize(cpu=1.0))


class Group:
    """Two places of half a core."""

    bundle_specs = [{"CPU": 0.5}, {"CPU": 0.5}]
    bundle_count = 2

    def wait(self, _: float) -> bool:
        return True


class Cluster:
    """Launchers by name: whether each is in the group; None: it does not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launchers: dict[str, bool | None] = {}
        self.removed: list[Any] = []
        monkeypatch.setattr(gangs.ray.util, "list_named_actors", lambda: list(self.launchers))
        monkeypatch.setattr(gangs.ray.util, "remove_placement_group", self.removed.append)
        monkeypatch.setattr(gangs, "_has_place", self.launchers.get)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


@pytest.fixture
def gang(monkeypatch: pytest.MonkeyPatch) -> Gang:
    monkeypatch.setattr(gangs, "machine_of", lambda _, index: f"M{index}")
    found = Gang()
    found._group = Group()  # type: ignore[assignment]
    return found


def want(bundle: int | None, place: AskedPlace) -> Want:
    return Want(node="worker-0", launch="a", place=place, bundle=bundle)


@pytest.mark.parametrize(
    ("wanted", "has_place"),
    [
        (want(0, HALF), True),
        (want(1, WHOLE), False),
        (want(None, HALF), False),
        (want(2, HALF), False),
    ],
)
def test_a_node_of_the_size_that_is_reserved_has_a_place(
    gang: Gang, wanted: Want, *, has_place: bool
) -> None:
    assert gang.waits(wanted) == ((2, True) if has_place else None)
    assert bool(gang.scheduling(wanted)) is has_place


def test_a_node_gets_a_place_elsewhere_where_its_own_is_on_a_machine_that_drains(
    gang: Gang,
) -> None:
    assert gang.scheduling(want(0, HALF), draining={"M1"})
    assert not gang.scheduling(want(0, HALF), draining={"M0"})


@pytest.mark.parametrize(
    ("launchers", "coming", "gives_back", "looks_again"),
    [
        ({"worker-0.2": False, "server-1.1": False}, [], True, False),
        ({}, [], True, False),
        ({"worker-0.2": False, "server-0.1": True}, [], False, False),
        ({"worker-0.2": False, "server-0.1": None}, [], False, True),
        ({"worker-0.2": False}, [want(0, HALF)], False, True),
        ({"worker-0.2": False}, [want(0, WHOLE)], True, False),
    ],
)
def test_places_are_given_back_when_no_node_has_one_or_is_about_to(
    gang: Gang,
    cluster: Cluster,
    launchers: dict[str, bool | None],
    coming: list[Want],
    *,
    gives_back: bool,
    looks_again: bool,
) -> None:
    cluster.launchers |= launchers
    gang.may_be_free = True
    gang.give_back_if_free(coming)
    assert bool(cluster.removed) is gives_back
    assert gang.may_be_free is looks_again
    assert bool(gang.scheduling(want(0, HALF))) is not gives_back


class Actor:
    """A launcher that Ray knows."""

    def __init__(self, answer: object) -> None:
        self.state = self
        self.answer = answer

    def remote(self) -> object:
        return self.answer


def test_a_launcher_says_itself_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said = AgentStarted(
        launch="a",
        host="h",
        place="p",
        pid=1,
        sees_job=True,
        size=NodeSize(),
        reserved_together=True,
    )
    errors = gangs.ray.exceptions
    answers: dict[str, object] = {
        "here.1": msgspec.json.encode(said),
        "late.1": errors.GetTimeoutError(),
        "away.1": errors.ActorUnavailableError("no connection", b"0" * 16),
        "dead.1": errors.RayActorError(),
    }

    def get(answer: object, timeout: float) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(gangs.ray, "get_actor", lambda name: Actor(answers[name]))
    monkeypatch.setattr(gangs.ray, "get", get)
    monkeypatch.setattr(gangs, "is_placed", lambda _: True)
    found = {name: gangs._has_place(name) for name in answers}
    assert found == {"here.1": True, "late.1": None, "away.1": None, "dead.1": False}
    monkeypatch.setattr(gangs, "is_placed", lambda _: False)
    assert gangs._has_place("here.1") is False
