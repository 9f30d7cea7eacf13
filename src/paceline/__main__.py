"""``python -m paceline``: the command, where its folder is not on the path."""

from paceline.cli.main import app

if __name__ == "__main__":
    app(prog_name="paceline")
