"""Things that a metrics endpoint lacks on this machine."""

from collections.abc import Iterator

from paceline.base.interfaces import bind_error
from paceline.wire.spec import JobSpec

HOST = "127.0.0.1"
"""Address at which the endpoint listens."""


def lacks(spec: JobSpec) -> Iterator[str]:
    """Say if the port cannot be had."""
    port = spec.metrics_port
    error = bind_error(HOST, port) if port else None
    if error is not None:
        where = spec.place_of("metrics_port")
        remedy = "name another, or 0 for any free one"
        yield f"{where}: got {port} ({error}), expected a free port of {HOST}; {remedy}"
