"""The help of ``paceline run``: what a first week needs, and with ``--help-all`` the rest.

Flags that ``--help`` leaves out are hidden only while it is written: a shell that completes them,
and the reference, see all of them.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import typer

from paceline.base.features import installed
from paceline.jobs.flags import OF_SPEC, SHORT
from paceline.terminal.torchrun import TORCHRUN_FLAGS

LATER = frozenset(
    [flag.parameter for flag in (*OF_SPEC.values(), *TORCHRUN_FLAGS) if not flag.is_first] + ["web"]
)
"""Parameters that only ``--help-all`` lists."""
ALL = "paceline.help_all"
"""Key of a context whose help lists all flags."""
HINT = "`paceline run --help-all` lists all flags, and the exit codes."


@contextlib.contextmanager
def arranged(command: Any, context: Any) -> Iterator[None]:
    """Have a command list the flags of a first week, or all of them, while its help is written.

    A command without ``--help-all`` lists all its flags, as they are.
    """
    if all(param.name != "help_all" for param in command.params):
        yield
        return
    if context.meta.get(ALL):
        features = _features()
        for param in command.params:
            param.rich_help_panel = features.get(param.name, param.rich_help_panel)
        yield
        return
    hidden = [param for param in command.params if param.name in LATER and not param.hidden]
    panels = {param: getattr(param, "rich_help_panel", None) for param in command.params}
    epilog, command.epilog = command.epilog, HINT
    for param in command.params:
        param.rich_help_panel = None  # so few flags need no headings
    for param in hidden:
        param.hidden = True
    try:
        yield
    finally:
        command.epilog = epilog
        for param, panel in panels.items():
            param.rich_help_panel = panel
        for param in hidden:
            param.hidden = False


def _features() -> dict[str, str]:
    """Return the panel of each parameter whose key of the spec is a feature's."""
    owners = {
        key: one.name for one in installed() if one.feature is not None for key in one.feature.keys
    }
    sections = {
        flag.parameter: SHORT.get(key, key).partition(".")[0] for key, flag in OF_SPEC.items()
    }
    return {
        parameter: f"Feature {owners[section]}"
        for parameter, section in sections.items()
        if section in owners
    }


def show_all(context: typer.Context, wanted: bool) -> None:
    """Print the help with all flags, and end the command."""
    if wanted and not context.resilient_parsing:
        context.meta[ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit
