"""Whose an error is that comes up while the probe works within a call of the script."""

import sys
import traceback

OURS = frozenset({"paceline", "torch", "numpy", "msgspec"}) | sys.stdlib_module_names
"""Packages whose code runs when the probe works. An error of theirs never reaches the script."""


def is_of_script(error: BaseException, package: str = "paceline") -> bool:
    """Whether the script's own code has raised it meanwhile, as the handler of a signal does.

    Args:
        error: to look at.
        package: whose code worked, beside `OURS`.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    name = frames[-1].f_globals.get("__name__", "") if frames else ""
    return str(name).partition(".")[0] not in OURS | {package}
