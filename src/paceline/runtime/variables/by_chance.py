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

_FIGURES = re.compile(
    r"-?\d+(?:[.:]\d+)+(?:[eE][-+]?\d+)?|\b\d+ ?(?:ns|us|ms|s|sec|min|h)\b|\bnan\b"
)
"""Fractions, clock times and durations; a whole number may be that of an epoch, or of a phase."""


def says_little(value: Any) -> bool:
    """Whether a value is one that variables of all kinds begin with: nothing, 0, not a number."""
    if value is None:
        return True
    if type(value) in (int, float) or isinstance(value, np.floating | np.integer):
        return value == 0 or not math.isfinite(value)
    return isinstance(value, str | bytes | list | tuple | dict | set) and not len(value)


def forms_of(look: ScriptLook) -> dict[str, str]:
    """Texts that have the time in them, or another measured figure, without it, by their paths."""
    texts = {path: leaf.value for path, leaf in look.leaves.items() if type(leaf.value) is str}
    forms = {path: _FIGURES.sub("#", text) for path, text in texts.items()}
    return {path: form for path, form in forms.items() if form != texts[path]}
