"""Variables that may be equal in all workers by chance, though each has its own.

A script's message that a variable "was equal in all workers, and differs" is worth reading only if
the variable was shared. What is of the batch in hand, a figure that begins with nothing, and a line
with the time in it are not.
"""

import math
import re
from typing import Any

import numpy as np

from paceline.runtime.variables.look import ScriptLook

_TIMES = re.compile(
    r"""
      (?<![\d:.]) (?:\d{4}-\d\d-\d\d[T ]|\b) \d{1,3}:[0-5]\d:[0-5]\d (?:[.,]\d+)? (?![\d:])
    | \b \d{4}-\d\d-\d\d T \d\d:[0-5]\d \b (?!:)
    | (?<![\w.-]) -? \d+\.\d+ (?:[eE][-+]?\d+)? \s?
      (?: [nuµm]?s | secs? | seconds? | mins? | minutes? | h | hours?
        | (?:it|samples|steps|batches|tokens)/s ) \b
    """,
    re.VERBOSE,
)
"""Clock times, and durations and rates that were measured: what has a fraction, and a unit of time.

Any other number may be what tells two lines apart: a learning rate, a fold, a version, an epoch.
"""


def says_little(value: Any) -> bool:
    """Tell whether variables of all kinds begin with such a value: nothing, 0, not a number."""
    if value is None:
        return True
    if type(value) in (int, float) or isinstance(value, np.floating | np.integer):
        return value == 0 or not math.isfinite(value)
    return isinstance(value, str | bytes | list | tuple | dict | set) and not len(value)


def forms_of(look: ScriptLook) -> dict[str, str]:
    """Texts that have the time in them, without it, by their paths."""
    texts = {path: leaf.value for path, leaf in look.leaves.items() if type(leaf.value) is str}
    forms = {path: _TIMES.sub("#", text) for path, text in texts.items()}
    return {path: form for path, form in forms.items() if form != texts[path]}
