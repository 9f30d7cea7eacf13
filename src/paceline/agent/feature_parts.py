"""Features' parts in one agent: fed with facts, and left out when they fail."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from paceline.agent.feature_port import AgentHere, AgentPart
from paceline.base import features
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.wire.codec import encode
from paceline.wire.messages.features import AgentFeatureSaid, AgentFeatureTold
from paceline.wire.spec import JobSpec

_log = logging.getLogger(__name__)


class AgentParts:
    """The parts of all installed features that have one, by name.

    Args:
        job: the node's.
        node: its name.
        spec: of the job.
        send: sends a message to the master.

    Raises:
        ConfigError: this machine lacks what a feature needs for the job.
    """

    def __init__(
        self, job: JobDir, node: str, spec: JobSpec, send: Callable[[AgentFeatureSaid], None]
    ) -> None:
        self._node, self._send = node, send
        self._parts: dict[str, AgentPart] = {}
        for name, make in features.parts_of("agent", self._failed, spec):
            here = AgentHere(job, spec, node, partial(self._say, name))
            self._begin_part(name, partial(make, here))

    def _begin_part(self, name: str, make: Callable[[], object]) -> None:
        try:
            part = make()
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a feature may be of any package
            self._failed(name, error)
            return
        if isinstance(part, AgentPart):
            self._parts[name] = part
        elif part is not None:
            self._failed(name, TypeError(f"its part is {part!r:.100}, and no AgentPart"))

    def _failed(self, name: str, error: Exception) -> None:
        """Leave a feature out from now on."""
        _log.error("feature_failed feature=%s node=%s", name, self._node, exc_info=error)
        part = self._parts.pop(name, None)
        if part is not None:
            with contextlib.suppress(Exception):  # the same fault may be in the way
                part.close()

    def _each(self, act: Callable[[AgentPart], Any]) -> Iterator[Any]:
        """Do something with each part; yield what comes of it, but for parts that fail."""
        for name, part in [*self._parts.items()]:
            try:
                found = act(part)
            except Exception as error:  # noqa: BLE001 - a feature may be of any package
                self._failed(name, error)
            else:
                yield found

    def _do(self, act: Callable[[AgentPart], Any]) -> None:
        for _ in self._each(act):
            pass

    def _say(self, name: str, body: Any) -> None:
        raw = msgspec.Raw(encode(body))
        self._send(AgentFeatureSaid(node=self._node, feature=name, body=raw))

    # ------------------------------------------------------------------ the master

    def connected(self) -> None:
        """Tell the parts that there is a new stream to a master."""
        self._do(lambda part: part.connected())

    def told(self, message: AgentFeatureTold) -> None:
        """Take a message to its part; without that part, or if it makes no sense, drop it."""
        part = self._parts.get(message.feature)
        if part is None:
            return
        try:
            part.told(message.body)
        except features.NONSENSE:
            _log.exception("message_dropped feature=%s", message.feature)
        except Exception as error:  # noqa: BLE001 - a feature may be of any package
            self._failed(message.feature, error)

    # ------------------------------------------------------------------ the process

    def began(self) -> None:
        """A new life of the process exists."""
        self._do(lambda part: part.began())

    def must_end(self) -> None:
        """The process was told to end."""
        self._do(lambda part: part.must_end())

    def has_room(self) -> bool:
        """Say whether the process may run here, as all parts have it."""
        return all([*self._each(lambda part: part.has_room())])

    def holds(self) -> bool:
        """Say whether any part holds the process back."""
        return any([*self._each(lambda part: part.holds())])

    # ------------------------------------------------------------------ the clock

    @property
    def ticks(self) -> bool:
        """Whether a part has something to do from time to time."""
        return any(type(part).tick is not AgentPart.tick for part in self._parts.values())

    def tick(self, now_s: float) -> None:
        """Let the parts do what is due."""
        self._do(lambda part: part.tick(now_s))

    def close(self) -> None:
        """The node is no more."""
        self._do(lambda part: part.close())
