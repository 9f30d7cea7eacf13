"""Numbers as people read them.

A moment is a clock since the job's launch (`clock`); a length of time has a unit (`seconds`).
"""

from collections.abc import Iterable

from paceline.wire.client import LastLogged


def clock(seconds: float) -> str:
    """``1:05``, ``2:03:04``: a moment, on a stopwatch that was started at the job's launch."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def seconds(value: float) -> str:
    """``0.84 s``, ``12.3 s``, ``3 min 4 s``: a measured length of time."""
    if value < 9.995:
        return f"{value:.2f} s"
    return f"{value:.1f} s" if value < 99.95 else lasting(value)


def lasting(seconds: float) -> str:
    """``42 s``, ``3 min 4 s``, ``2 h 3 min``, ``4 d 5 h``: a length of time to the second."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    (larger, unit), (smaller, rest) = (whole // 60, "min"), (whole % 60, "s")
    for size, name in ((60, "h"), (24, "d")):
        if larger >= size:
            larger, smaller, unit, rest = larger // size, larger % size, name, unit
    return f"{larger} {unit} {smaller} {rest}" if smaller else f"{larger} {unit}"


def age(seconds: float) -> str:
    """``42 s``, ``5 min``, ``3 h``, ``12 d``."""
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds // unit_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def milliseconds(value_s: float) -> str:
    """A batch processing time; nothing was measured: ``-``."""
    return f"{value_s * 1e3:.1f} ms" if value_s > 0 else "-"


def mib(num_bytes: int) -> str:
    """``312 MiB``."""
    return f"{num_bytes / 2**20:,.0f} MiB" if num_bytes else "-"


def size(num_bytes: int) -> str:
    """``512 B``, ``3.4 KiB``, ``312 MiB``."""
    if num_bytes < 1024:
        return f"{num_bytes} B"
    value, units = num_bytes / 1024, ["KiB", "MiB", "GiB", "TiB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.1f} {units[0]}" if value < 99.95 else f"{value:,.0f} {units[0]}"


def percent(part: float, whole: float) -> str:
    """``25 %``; nothing of nothing: ``-``."""
    return f"{part / whole:.0%}".replace("%", " %") if whole else "-"


def counted(number: int, noun: str) -> str:
    """``1 worker``, ``3 workers``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def speed(samples_per_s: float | None) -> str:
    """``34,100 samples/s``, ``0.42 samples/s``; not known: ``-``."""
    if samples_per_s is None:
        return "-"
    digits = f"{samples_per_s:.2g}" if 0 < samples_per_s < 9.95 else f"{samples_per_s:,.0f}"
    return f"{digits} samples/s"


def logged(values: Iterable[LastLogged], width: int = 1000) -> str:
    """``loss 0.2314  val/auc 0.8123``: as many of them as there is room for."""
    text = ""
    for one in values:
        value = f"{one.value:.4g}" if isinstance(one.value, float) else str(one.value)
        longer = f"{text}  {one.name} {value}".strip()
        if len(longer) > width:
            break
        text = longer
    return text


def progress(committed: int, total: int | None) -> str:
    """``90,000 of 360,000 samples``."""
    return f"{committed:,} of {total:,} samples" if total else f"{committed:,} samples"
