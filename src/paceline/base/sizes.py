"""Sizes in words."""


def size_of(num_bytes: float) -> str:
    """Write a size in words: ``1.5 GiB``."""
    for power, unit in ((3, "GiB"), (2, "MiB")):
        if num_bytes >= 1024**power:
            return f"{num_bytes / 1024**power:.3g} {unit}"
    return f"{num_bytes / 1024:.3g} KiB"
