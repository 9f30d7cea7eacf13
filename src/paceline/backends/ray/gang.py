"""The places that a job's first nodes have reserved together: who takes one, when all are free.

Ray gives them back all or none. A node that got another size has a place elsewhere, and leaves its
own unused until the last of the others has left, too.
"""

from collections.abc import Container, Iterable
from typing import Any

import msgspec
import ray
import ray.exceptions
import ray.util
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from paceline.backends.ray.cluster import is_placed, reserve
from paceline.backends.ray.launcher import AgentStarted
from paceline.backends.ray.messages import Want, resources_of
from paceline.wire.places import AskedPlace

ANSWER_S = 3.0
"""Seconds for which a launcher may be silent; then it is asked again later."""


class Gang:
    """The places of one job that are reserved together; all methods ask Ray, and block."""

    def __init__(self) -> None:
        self._group: PlacementGroup | None = None
        self.may_be_free = False
        """Whether a node has left one since somebody looked."""

    def reserve(self, places: Iterable[AskedPlace]) -> None:
        """Reserve these places, or find those that are reserved."""
        self._group = reserve([resources_of(place) for place in places])

    def scheduling(self, want: Want, draining: Container[str] = ()) -> dict[str, Any]:
        """Return the option that places a launcher here; empty: it gets a place elsewhere.

        Args:
            want: the node.
            draining: Ray's names of machines that go away, on which no launcher comes up.
        """
        if self._group is None or not self._has_place_for(want):
            return {}
        index = want.bundle
        assert index is not None
        if machine_of(self._group, index) in draining:
            return {}
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        return {"scheduling_strategy": place}

    def waits(self, want: Want) -> tuple[int, bool] | None:
        """Count the places, and say whether they are there; None: the node has none of them."""
        if self._group is None or not self._has_place_for(want):
            return None
        return self._group.bundle_count, self._group.wait(0)

    def give_back_if_free(self, coming: Iterable[Want]) -> None:
        """Give all places back if no node has one.

        Args:
            coming: nodes that have no place yet.
        """
        if self._group is None or any(self._has_place_for(want) for want in coming):
            return
        self.may_be_free = False
        found = [_has_place(name) for name in ray.util.list_named_actors()]
        if None in found:
            self.may_be_free = True  # one does not answer, and may be here
        if not any(place is None or place for place in found):
            self.give_back()

    def give_back(self) -> None:
        """Give all places back; what runs there ends."""
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
        self._group = None

    def _has_place_for(self, want: Want) -> bool:
        """Tell whether the node's place is one of these: a node of another size has none here."""
        if self._group is None or want.bundle is None:
            return False
        bundles = self._group.bundle_specs
        return want.bundle < len(bundles) and bundles[want.bundle] == resources_of(want.place)


def machine_of(group: PlacementGroup, index: int) -> str:
    """Return Ray's name of the machine that a place is on; empty: it is on none yet."""
    table = ray.util.placement_group_table(group)
    return str(table.get("bundles_to_node_id", {}).get(index, ""))


def _has_place(name: str) -> bool | None:
    """Tell whether this launcher's place is one of those; None: it does not answer."""
    try:
        actor = ray.get_actor(name)
        if not is_placed(actor):
            return False
        line = ray.get(actor.state.remote(), timeout=ANSWER_S)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError):
        return None
    except (ValueError, ray.exceptions.RayActorError):
        return False  # it has ended
    return msgspec.json.decode(line, type=AgentStarted).reserved_together
