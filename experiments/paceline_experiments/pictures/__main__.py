"""Make the pictures of the README: ``python -m paceline_experiments.pictures [NAME ...]``."""

import argparse
from pathlib import Path

from paceline_experiments.pictures.recovery import draw_recovery

DOCS = Path(__file__).parents[3] / "docs"
NAMES = ("recovery", "live", "cast")


def main() -> None:
    """Make the pictures that are named; none: all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--folder", type=Path, default=DOCS / "figures", help="where they go")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"no picture is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    made = _made(options.names or NAMES)
    for name, text in made.items():
        path = options.folder / f"{name}.svg"
        path.write_text(text)
        print(f"{path}: {len(text.encode()):,} bytes")


def _made(names: tuple[str, ...]) -> dict[str, str]:
    """Return the text of each picture; the live view and the cast show one job."""
    made = {}
    if "recovery" in names:
        made["recovery"] = draw_recovery((DOCS / "bench.md").read_text())
    if "live" in names or "cast" in names:
        # Imported here: the picture of recovery needs no terminal, and none of its packages.
        from paceline_experiments.pictures import recorded_job

        panes = recorded_job.record()
        made |= {"live": recorded_job.live(panes[0]), "cast": recorded_job.cast(panes)}
    return {name: made[name] for name in names}


if __name__ == "__main__":
    main()
