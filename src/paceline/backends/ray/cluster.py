"""Requests of the gateway to Ray: the connection, names of actors, places, words of errors."""

import contextlib
import logging
import os
import socket
import threading
import time
from typing import Any

import msgspec
import ray
import ray.exceptions
import ray.util
from ray.util.placement_group import PlacementGroup

from paceline.backends.ray.launcher import IDLE_S, Launcher
from paceline.base.errors import ConfigError
from paceline.protocol.nodes.ends import EndKind
from paceline.wire.spec import NodeSize

GANG = "gang"
KNOCK_S = 5.0
"""Seconds for a connection to the head of the cluster."""
LEAVE_S = 30.0
"""Seconds for Ray to take places back, and for the other launchers to end."""
LOOK_S = 1.0
"""Seconds between looks for the other launchers."""


def namespace_of(job_id: str) -> str:
    """Return where in Ray the actors of a job are."""
    return f"paceline-{job_id}"


def remote_launcher() -> Any:
    """The launcher as an actor: it gives its place back when it ends on its own."""

    class LauncherActor(Launcher):
        def __init__(self, size: bytes) -> None:
            where = ray.get_runtime_context()
            super().__init__(
                where.get_node_id(),
                _leave,
                msgspec.json.decode(size, type=NodeSize),
                reserved_together=where.get_placement_group_id() is not None,
            )
            # A launcher that comes up when nobody is left to ask for anything.
            unasked = threading.Timer(IDLE_S, self._leave_if_unasked)
            unasked.daemon = True
            unasked.start()

        def _leave_if_unasked(self) -> None:
            if not self.was_asked:
                _leave()

    return ray.remote(LauncherActor)


def _leave() -> None:
    """End this actor; the last of its job gives back the places that were reserved together.

    All of them may leave at once, so one waits for the others: the first by name.
    """
    last = threading.Timer(LEAVE_S, os._exit, (0,))  # Ray may be dead, and not answer
    last.daemon = True
    last.start()
    own = ray.get_runtime_context().get_actor_name()
    while min(names := ray.util.list_named_actors(), default=own) == own:
        if len(names) <= 1:
            with contextlib.suppress(ValueError):
                ray.util.remove_placement_group(ray.util.get_placement_group(GANG))
            break
        threading.Event().wait(LOOK_S)
    os._exit(0)


def knock(address: str) -> None:
    """Find out at once where nothing listens at HOST:PORT; Ray itself tries for a minute.

    Raises:
        ConfigError: the machine refuses, or there is none.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host, int(port)), KNOCK_S).close()
    except TimeoutError:
        return  # a slow way: Ray has more patience
    except (OSError, OverflowError) as error:
        raise ConfigError(f"the Ray cluster at {address} does not answer ({error})") from error


def connect(address: str, namespace: str) -> None:
    """Connect this process to the cluster.

    Raises:
        ConfigError: nothing answers there.
    """
    try:
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        lines = [line for line in str(error).splitlines() if line]
        words = lines[0] if lines else type(error).__name__
        raise ConfigError(f"the Ray cluster at {address} does not answer ({words})") from error


def draining_machines() -> dict[str, float | None]:
    """Machines that are going away, and the seconds that they have; None: Ray does not say."""
    found = ray._private.state.state.get_draining_nodes()
    now_s = time.time()
    return {node: max(0.0, at_ms / 1e3 - now_s) if at_ms else None for node, at_ms in found.items()}


def reserve(bundles: list[dict[str, float]]) -> PlacementGroup | None:
    """Reserve places for the nodes that a job needs at least: all or none, once for each job.

    None: none need be, or a gateway before this one has given them back, as the job's launchers
    that are elsewhere show.
    """
    try:
        return ray.util.get_placement_group(GANG)
    except ValueError:
        if not bundles or ray.util.list_named_actors():
            return None
        return ray.util.placement_group(bundles, strategy="PACK", name=GANG, lifetime="detached")


def names_of(node: str) -> list[str]:
    """The launchers of a node, the newest last."""
    names = [name for name in ray.util.list_named_actors() if name.rpartition(".")[0] == node]
    return sorted(names, key=lambda name: int(name.rpartition(".")[2]))


def is_placed(actor: Any) -> bool:
    """Tell whether an actor has come up, so that it may have started something."""
    return state_of(actor) == "ALIVE"


def state_of(actor: Any) -> str:
    """Return Ray's word for the state of an actor: only an ``ALIVE`` one answers.

    One that is ``DEAD`` may have started something; any other has not come up so far.
    """
    found = ray._private.state.actors(actor._actor_id.hex())
    return str(found.get("State", "DEAD"))


def kind_of(error: Exception) -> EndKind:
    """Return how an actor ended, as far as Ray's error says."""
    if isinstance(error, ray.exceptions.RayActorError) and error.preempted:
        return EndKind.PREEMPTED
    cause = str(getattr(error, "cause", None) or error)
    of_monitor = "memory" in cause and ("OOM" in cause or "OutOfMemory" in cause)
    return EndKind.OOM if of_monitor else EndKind.NODE_LOST


def words_of(error: Exception) -> str:
    """Ray's own words, without the stack that it adds."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
