"""The server of pages: what one request may cost, and orders that no job can follow."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir
from paceline.features.report import server
from paceline.features.report.server import Pages, application
from paceline.features.report.serving import listen


def asked(path: str, body: bytes, token: str = "secret") -> int:
    """Send the server a request; the status of its answer."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"here"), (b"authorization", f"Bearer {token}".encode())]
    about = {"method": "POST", "path": path, "query_string": b"", "headers": headers}
    scope: Any = {"type": "http", "http_version": "1.1", "scheme": "http", **about}
    asyncio.run(application("secret", ["here"])(scope, receive, send))
    return int(sent[0]["status"])


def test_requests_that_come_together_share_one_look_at_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Followed:
        def __init__(self, job: JobDir) -> None:
            self.look = lambda: job

    monkeypatch.setattr(server, "find_job", lambda job_id: JobDir(Path("/jobs") / job_id))
    monkeypatch.setattr(server, "FollowedJob", Followed)
    pages = Pages()
    assert pages.of_job("x") is pages.of_job("x")


@pytest.mark.parametrize("workers", ["-1", "0", "1000001", "99999999999999999999", "1e300"])
def test_a_number_of_workers_that_no_job_can_have_is_refused(workers: str) -> None:
    body = f'{{"workers":{workers}}}'.encode()
    assert asked("/api/jobs/x/scale", body) == 400
    assert asked("/api/jobs/x/scale", body, token="wrong") == 401


def test_a_port_beyond_the_last_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="got 70000, expected at most 65535"):
        listen("127.0.0.1", 70_000)
