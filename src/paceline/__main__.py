"""The command ``paceline``, also as ``python -m paceline``."""

import sys

from paceline import __version__


def main() -> None:
    """Run the command; for its version alone nothing of it is imported."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"paceline {__version__}\n")
        return
    from paceline.cli.main import app  # typer and all commands take 0.2 s

    app(prog_name="paceline")


if __name__ == "__main__":
    main()
