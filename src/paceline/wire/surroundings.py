"""Surroundings of a run: the shell and the machine that it was first started in."""

from msgspec import Struct


class Surroundings(Struct, frozen=True):
    """Variables and cores that a job takes along over lives, resumes and machines.

    They change what a script computes: in which order a ``set`` is read, how numbers are printed,
    what time it is, into how many parts torch divides a sum.
    """

    variables: dict[str, str | None] = {}
    """Hash seed, locale, time zone and numbers of threads; None: the variable was not set. Empty:
    the job was not started so far."""
    cores: int | None = None
    """Cores of the machine, of which threads follow. None: each machine counts its own."""
