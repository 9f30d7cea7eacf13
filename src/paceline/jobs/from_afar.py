"""The ticket that ``--job`` of a command line names; apart, since every command sets it."""

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # most commands need none, and no TLS
    from paceline.jobs.tickets import Ticket

TICKET: "ContextVar[Ticket | None]" = ContextVar("TICKET", default=None)
"""Ticket of the job that ``--job`` of the command line names; None: jobs are those of here."""
