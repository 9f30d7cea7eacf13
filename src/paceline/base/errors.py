"""The error tree; subclasses say what the caller does next.

PacelineError
├── ConfigError      the user's input is wrong: names the thing, the value, the remedy
├── TransientError   try again
├── PermanentError   give up: trying again cannot help
└── InternalError    a rule of ours was broken: please report it
"""


class PacelineError(Exception):
    """Root of all errors that paceline raises on purpose."""


class ConfigError(PacelineError):
    """A spec, a script or a data file is wrong; raised before any work starts."""


class TransientError(PacelineError):
    """The operation may succeed when tried again."""


class PermanentError(PacelineError):
    """Trying again cannot help."""


class InternalError(PacelineError):
    """An invariant of paceline was broken; the message says which. Please report it."""
