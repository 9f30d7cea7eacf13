"""Times at which the server that orders updates tells the master what is in the model."""

import math

REPORT_S, REPORT_ANYWAY_S = 0.1, 1.0
"""Least seconds between reports, and further seconds after which an unchanged model is reported, as
in `runtime.server.server`."""


class Leader:
    """Counts its reports; nothing else depends on them."""

    def __init__(self) -> None:
        self.num_reports = 0
        self._last_s = 0.0
        self._has_news = False

    def applied(self, now_s: float) -> None:
        """The model has changed; moments must not decrease."""
        if self._has_news and now_s >= self._last_s + REPORT_S:
            self._report(self._last_s + REPORT_S)
        if not self._has_news:
            silent_s = REPORT_S + REPORT_ANYWAY_S
            count = math.floor((now_s - self._last_s) / silent_s)
            self.num_reports += count
            self._last_s += count * silent_s
        self._has_news = True
        if now_s >= self._last_s + REPORT_S:
            self._report(now_s)

    def _report(self, at_s: float) -> None:
        self.num_reports += 1
        self._last_s, self._has_news = at_s, False
