"""Things that a metrics endpoint lacks on this machine."""

from collections.abc import Iterator

from paceline.base.interfaces import bind_error
from paceline.base.optional import complaint
from paceline.wire.spec import JobSpec

HOST = "127.0.0.1"
"""Address at which the endpoint listens."""


def lacks(spec: JobSpec) -> Iterator[str]:
    """Say if the library is not installed, or the port cannot be had."""
    where, port = spec.place_of("metrics_port"), spec.metrics_port
    if missing := complaint("the metrics endpoint", "prometheus_client"):
        yield f"{where}: {missing}"
    error = bind_error(HOST, port) if port else None
    if error is not None:
        remedy = "name another, or 0 for any free one"
        yield f"{where}: got {port} ({error}), expected a free port of {HOST}; {remedy}"
