"""The arithmetic of a duty cycle: how long a job waits for what it has used of a device."""

LEAST_DUTY = 0.02
"""Least part of a device that a job which shares it is throttled to, but for pauses."""


def idle_s(busy_s: float, duty: float) -> float:
    """Return how long a job must idle after it has used the device for ``busy_s`` seconds.

    Args:
        busy_s: of the device's own time, not of the wall's.
        duty: the part of the device that the job may use, above 0.
    """
    return busy_s * max(1.0 / duty - 1.0, 0.0)
