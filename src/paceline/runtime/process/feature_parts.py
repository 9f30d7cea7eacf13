"""Features' parts in one worker: fed with facts, and left out when they fail."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.base import features
from paceline.base.errors import ConfigError
from paceline.base.numbering import Inc
from paceline.runtime.probe.faults import is_of_script
from paceline.runtime.process.feature_port import Here, Links, LogPlace, Number, ProcessPart
from paceline.runtime.process.process import Process
from paceline.wire.codec import encode
from paceline.wire.messages.base import Link
from paceline.wire.messages.features import FeatureSaid, FeatureTold

if TYPE_CHECKING:  # torch: a server's process imports this, too
    from torch import device

    from paceline.runtime.probe.times import StepOver


def here_of(process: Process) -> Here:
    """Return what the parts of this process are told of it."""
    return Here(process.job, process.spec, process.node, process.inc, process.rank)


class ProcessParts:
    """The parts of all installed features that have one, by name.

    Args:
        here: the process.
        told: messages of the master that came with the order to start it, by feature.
    """

    def __init__(self, here: Here, told: Mapping[str, msgspec.Raw] | None = None) -> None:
        self._inc: Inc = here.inc
        self._has_measured = False
        self._parts: dict[str, ProcessPart] = {}
        for name, make in features.parts_of("process", self._failed, here.spec):
            for part in self._doing(name, lambda make=make: make(here)):  # type: ignore[misc]
                if isinstance(part, ProcessPart):
                    self._parts[name] = part
                elif part is not None:
                    wrong = TypeError(f"its part is {part!r:.100}, and no ProcessPart")
                    self._failed(name, wrong)
        for name, body in (told or {}).items():
            self.told(FeatureTold(inc=here.inc, feature=name, body=body))

    def _failed(self, name: str, error: Exception) -> None:
        self._parts.pop(name, None)
        sys.stderr.write(
            f"paceline: feature {name} failed ({features.in_a_line(error)}); this worker goes on "
            "without it\n"
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
    def by_steps(self) -> tuple[str, ...]:
        """Names of the features that need the steps of a script that trains on its own."""
        return tuple(name for name, part in self._parts.items() if part.goes_by_steps)

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

    def script_timed(self, over: "StepOver") -> None:
        """Tell all parts what a step of a script that trains on its own took."""
        self._within_script(lambda part: part.script_timed(over))

    def script_stepped(self, step: int) -> None:
        """Tell all parts that a script that trains on its own is between two steps."""
        self._within_script(lambda part: part.script_stepped(step))

    def _within_script(self, act: Callable[[ProcessPart], None]) -> None:
        """Do something with each part, in a call of the script: an error of the script is its."""
        for name, part in [*self._parts.items()]:
            try:
                act(part)
            except Exception as error:
                if is_of_script(error, type(part).__module__.partition(".")[0]):
                    raise
                self._failed(name, error)

    def measuring(self, device: "device") -> Callable[[Links], None] | None:
        """Return what measures this node for all parts, once in a life; None: nobody asks for it.

        What is returned may be called again if links cannot be measured, and raises what they do.

        Args:
            device: that holds the model.
        """
        due = {name: one for name, one in self._parts.items() if one.is_to_measure}
        if self._has_measured or not due:
            return None
        self._has_measured = True

        def measure(links: Links) -> None:
            known, broken = cache(links), list[Exception]()

            def once() -> tuple[Link, ...]:
                try:
                    return known()
                except Exception as error:
                    broken.append(error)
                    raise

            for name, part in due.items():
                try:
                    part.measure(device, once)
                except Exception as error:
                    if error in broken:
                        raise
                    self._failed(name, error)
            once()  # peers wait for it, whatever became of the parts

        return measure

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
        """Take a message to its part; without that part, or if it makes no sense, drop it."""
        part = self._parts.get(message.feature)
        if part is None:
            return
        try:
            part.told(message.body)
        except features.NONSENSE as error:
            sys.stderr.write(
                f"paceline: a message for feature {message.feature} makes no sense "
                f"({type(error).__name__}: {error}), and is dropped\n"
            )
        except Exception as error:  # noqa: BLE001 - a feature may be of any package
            self._failed(message.feature, error)

    def due(self, now_s: float) -> Iterator[FeatureSaid]:
        """Yield the messages that must be sent now."""
        return self._said(lambda part: part.due(now_s))

    def rest(self) -> Iterator[FeatureSaid]:
        """Yield the last messages of this process."""
        return self._said(lambda part: part.rest())

    def _said(self, act: Callable[[ProcessPart], Iterable[Any]]) -> Iterator[FeatureSaid]:
        for name, part in [*self._parts.items()]:
            for bodies in self._doing(name, lambda part=part: [encode(one) for one in act(part)]):  # type: ignore[misc]
                for body in bodies:
                    yield FeatureSaid(inc=self._inc, feature=name, body=msgspec.Raw(body))
