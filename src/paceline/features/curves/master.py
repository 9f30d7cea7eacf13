"""The curves in a master: they are kept, answered, and shown."""

import msgspec

from paceline.base.numbering import Inc
from paceline.features.curves.feeding import feed_of
from paceline.features.curves.keeping import CurveKeeping
from paceline.features.curves.wire import Logged
from paceline.master.feature_port import Core, MasterPart
from paceline.wire.client import Shown

_decode = msgspec.msgpack.Decoder(Logged).decode


class CurvesPart(MasterPart):
    """Keeps the curves of a job."""

    def __init__(self, core: Core) -> None:
        self._core = core
        sinks = feed_of(core.spec, core.job.job_id)
        self._keeping = CurveKeeping(core.job.curves, core.tell, core.send, core.wall, sinks)

    def heard(self, node: str, inc: Inc, body: msgspec.Raw) -> None:
        self._keeping.heard(inc, _decode(body), self._core.steady(), self._core.place)

    def tick(self, now_s: float) -> None:
        self._keeping.tick(now_s)

    def shown(self) -> Shown:
        return Shown(logged=self._keeping.last())

    def close(self) -> None:
        self._keeping.close()
