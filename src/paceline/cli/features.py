"""``paceline features``: what is installed beside the core."""

from rich.console import Console
from rich.table import Table

from paceline.base.features import Feature, installed

PARTS = {
    "verbs": "commands",
    "master": "master",
    "agent": "agents",
    "process": "workers",
    "shown": "status",
    "explained": "explain",
    "lacks": "checks",
    "ended": "end",
    "sections": "report",
}
"""Field of a `Feature` -> what people call the place where that part is."""


def features() -> None:
    """List the features that are installed: what each does, where, and what switches it on."""
    table = Table(box=None, pad_edge=False)
    for title in ("feature", "package", "what it does", "on with", "has parts in"):
        table.add_column(title)
    for one in installed():
        if one.feature is None:
            table.add_row(one.name, one.package, f"cannot be loaded: {one.fault}", "", "")
        else:
            on = one.feature.switch or ("its commands" if one.feature.verbs else "every job")
            table.add_row(one.name, one.package, one.feature.about, on, parts_of(one.feature))
    Console().print(table)


def parts_of(feature: Feature) -> str:
    """Name the places where a feature has a part."""
    return ", ".join(place for field, place in PARTS.items() if getattr(feature, field))
