"""The kind of command that a script's own words follow, as ``paceline run`` is."""

import sys
from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand

from paceline.terminal.arguments import arrange, defined_in
from paceline.terminal.command_words import Options
from paceline.terminal.run_help import arranged
from paceline.terminal.torchrun import TORCHRUN_FLAGS


class RunCommand(TyperCommand):
    """Gives the script its own words before the rest is read as flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Divide the words, and say what could be taken for the other's."""
        if not ctx.resilient_parsing:
            args, note = arrange(args, options_of(self.get_params(ctx)), defined_in)
            if note:
                print(note, file=sys.stderr)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of a first week, or with ``--help-all`` that of all flags."""
        with arranged(self, ctx):
            super().format_help(ctx, formatter)


def options_of(parameters: Iterable[Any]) -> Options:
    """Return which of a command's parameters are options."""
    options = [param for param in parameters if param.param_type_name == "option"]
    takes_value = {name: not option.is_flag for option in options for name in option.opts}
    return Options(takes_value, {name for flag in TORCHRUN_FLAGS for name in flag.names})
