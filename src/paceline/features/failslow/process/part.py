"""Fail-slow in a worker: the check of its node, or the watch over a script of its own."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, assert_never

import msgspec

from paceline.features.failslow.wire import Checked, CheckKept, CheckNode
from paceline.runtime.process.feature_port import Here, Links, ProcessPart
from paceline.runtime.process.process import Process

if TYPE_CHECKING:  # torch: the script may do without
    from torch import device

    from paceline.features.failslow.process.watch import ScriptWatch
    from paceline.runtime.probe.times import StepOver

CheckTakes = CheckNode | CheckKept
"""Messages to a worker whose script paceline steers."""

_decode = msgspec.msgpack.Decoder(CheckTakes).decode


class NodeCheck(ProcessPart):
    """Measures what the node can do, if the master asks for it, and tells it until it is kept."""

    def __init__(self, here: Here) -> None:
        self._inc = here.inc
        self._is_asked = False
        self._untold: Checked | None = None

    def told(self, body: msgspec.Raw) -> None:
        message: CheckTakes = _decode(body)
        match message:
            case CheckNode():
                self._is_asked = True
            case CheckKept():
                self._untold = None
            case _:
                assert_never(message)

    @property
    def is_to_measure(self) -> bool:
        return self._is_asked

    def measure(self, device: "device", links: Links) -> None:
        from paceline.features.failslow.process.node_speed import measure_node  # with torch
        from paceline.runtime.group.store import GroupOver  # with torch

        checked = Checked(inc=self._inc)
        try:
            checked = Checked(inc=self._inc, speed=measure_node(device))
        except Exception as error:  # noqa: BLE001 - told to the master, whatever it is
            checked = Checked(inc=self._inc, error=f"{type(error).__name__}: {error}")
        try:
            found = links()
        except GroupOver:
            raise  # a peer is gone: all of it comes again, with another group
        except Exception as error:
            self._untold = msgspec.structs.replace(checked, error=f"links: {error!r}")
            raise
        if checked.speed is not None:
            checked = msgspec.structs.replace(checked, speed=checked.speed.with_links(found))
        self._untold = checked

    def due(self, now_s: float) -> Iterable[Checked]:
        return self.rest()

    def rest(self) -> Iterable[Checked]:
        return () if self._untold is None else (self._untold,)


class WatchedScript(ProcessPart):
    """Has a script's collective calls noted, and its ranks meet when the master says so."""

    goes_by_steps = True

    def __init__(self) -> None:
        self._watch: ScriptWatch | None = None
        """None: this torch cannot be watched."""

    def begin(self, process: Process) -> None:
        from paceline.features.failslow.process.watch import ScriptWatch  # with torch

        if process.script_steps is not None:
            self._watch = ScriptWatch(process, process.script_steps)
            self._watch.install()

    def told(self, body: msgspec.Raw) -> None:
        if self._watch is not None:
            self._watch.meetings.told(body)

    def script_timed(self, over: "StepOver") -> None:
        if self._watch is not None:
            self._watch.timed(over)

    def script_stepped(self, step: int) -> None:
        if self._watch is not None:
            self._watch.stepped(step)


def make(here: Here) -> ProcessPart | None:
    """Return the part of a worker; None: its script trains by itself, and is not watched."""
    if here.spec.traits.trains:
        return NodeCheck(here)
    return WatchedScript() if here.spec.watch else None
