"""What is said where Ray's jobs API is not there, or refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.backends.ray.submitting import send
from paceline.base.errors import ConfigError

jobs = pytest.importorskip("ray.job_submission")
ADDRESS = "http://head:8265"


def client(connect: Callable[[], None], take: Callable[[], str]) -> Callable[[str], Any]:
    """Make a client that does this."""

    class Client:
        def __init__(self, address: str) -> None:
            assert address == ADDRESS
            connect()

        def submit_job(self, **_: object) -> str:
            return take()

    return Client


def fails(error: Exception) -> Callable[[], Any]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("no way"),
        OSError("no way"),  # what `requests` raises
        AssertionError("no way"),
        ValueError("no way\nand more"),
    ],
)
def test_an_address_without_a_dashboard_is_named(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "JobSubmissionClient", client(fails(error), lambda: "id"))
    with pytest.raises(ConfigError) as told:
        send(ADDRESS, "paceline run", None, None)
    expected = "expected the dashboard of a Ray cluster: no way"
    assert str(told.value) == f"--address: got {ADDRESS}, {expected}"


def test_a_job_that_ray_does_not_take_is_no_matter_of_the_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = "Request failed with status code 500: Traceback\n  File x\nValueError: too large\n."
    refuses = client(lambda: None, fails(RuntimeError(said.removesuffix("."))))
    monkeypatch.setattr(jobs, "JobSubmissionClient", refuses)
    with pytest.raises(ConfigError) as told:
        send(ADDRESS, "paceline run", tmp_path, None)
    expected = f"the Ray cluster at {ADDRESS} does not take the job: ValueError: too large"
    assert str(told.value) == f"submit: {expected}"
