"""Features' parts in one worker: fed with facts, and left out when they fail."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from paceline.base import features
from paceline.base.errors import ConfigError
from paceline.base.numbering import Inc
from paceline.runtime.process.feature_port import Here, LogPlace, Number, ProcessPart
from paceline.runtime.process.process import Process
from paceline.wire.codec import encode
from paceline.wire.messages.features import FeatureSaid, FeatureTold


def here_of(process: Process) -> Here:
    """Return what the parts of this process are told of it."""
    return Here(process.job, process.spec, process.node, process.inc, process.rank)


class ProcessParts:
    """The parts of all installed features that have one, by name."""

    def __init__(self, here: Here) -> None:
        self._inc: Inc = here.inc
        self._parts: dict[str, ProcessPart] = {}
        for name, make in features.parts_of("process", self._failed):
            for part in self._doing(name, lambda make=make: make(here)):  # type: ignore[misc]
                if part is not None:
                    self._parts[name] = part

    def _failed(self, name: str, error: Exception) -> None:
        self._parts.pop(name, None)
        sys.stderr.write(
            f"paceline: feature {name} failed ({type(error).__name__}: {error}); this worker goes "
            "on without it\n"
        )

    def _doing(self, name: str, act: Callable[[], Any]) -> Iterator[Any]:
        """Yield what comes of an act of a part; nothing if it fails, and is left out."""
        try:
            found = act()
        except Exception as error:  # noqa: BLE001 - a feature may be of any package
            self._failed(name, error)
        else:
            yield found

    @property
    def go_by_steps(self) -> bool:
        """Whether any part needs the steps of a script that trains on its own."""
        return any(part.goes_by_steps for part in self._parts.values())

    def begin(self, process: Process) -> None:
        """Have all parts put into the process what must be there before the script runs.

        Raises:
            ConfigError: this machine lacks what a feature needs.
        """
        for name, part in [*self._parts.items()]:
            try:
                part.begin(process)
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001 - a feature may be of any package
                self._failed(name, error)

    def logged(self, place: LogPlace, values: Mapping[str, Number], now_s: float) -> None:
        """Give values of ``job.log`` to all parts."""
        for name, part in [*self._parts.items()]:
            for _ in self._doing(name, lambda part=part: part.logged(place, values, now_s)):  # type: ignore[misc]
                pass

    def loop_ended(self) -> None:
        """Tell all parts that a loop is over, or was left."""
        for name, part in [*self._parts.items()]:
            for _ in self._doing(name, part.loop_ended):
                pass

    def told(self, message: FeatureTold) -> None:
        """Take a message to its part; without that part it is dropped."""
        part = self._parts.get(message.feature)
        if part is not None:
            for _ in self._doing(message.feature, lambda: part.told(message.body)):
                pass

    def due(self, now_s: float) -> Iterator[FeatureSaid]:
        """Yield the messages that must be sent now."""
        return self._said(lambda part: part.due(now_s))

    def rest(self) -> Iterator[FeatureSaid]:
        """Yield the last messages of this process."""
        return self._said(lambda part: part.rest())

    def _said(self, act: Callable[[ProcessPart], Iterable[Any]]) -> Iterator[FeatureSaid]:
        for name, part in [*self._parts.items()]:
            for bodies in self._doing(name, lambda part=part: [*act(part)]):  # type: ignore[misc]
                for body in bodies:
                    raw = msgspec.Raw(encode(body))
                    yield FeatureSaid(inc=self._inc, feature=name, body=raw)
