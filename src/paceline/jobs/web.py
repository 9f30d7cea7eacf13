"""A page that shows a job in a browser while a command watches the job."""

from typing import Protocol

from paceline.base import features
from paceline.base.errors import ConfigError
from paceline.base.jobdir import JobDir


class WebPage(Protocol):
    """A page that is served: what the part ``web`` of a feature returns."""

    @property
    def address(self) -> str:
        """Where a browser finds it."""

    def close(self) -> None:
        """Serve it no more."""


def open_page(job: JobDir) -> WebPage:
    """Have a feature serve the page of a job.

    Raises:
        ConfigError: no feature does, or it cannot.
    """
    for _name, serve in features.parts_of("web", features.say_failed):
        page: WebPage = serve(job)
        return page
    raise ConfigError("--web: no installed feature shows a job in a browser; leave --web out")
