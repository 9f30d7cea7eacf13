"""Install the peers that benchmarks are run beside, each into an environment of its own.

    python benchmarks/peers/install.py FOLDER [NAME ...]

Each gets this interpreter's torch. ``dlrover`` is as it is installed, which stops before it trains
(0.6.1 calls a class of torch's by an older signature); ``dlrover-fixed`` is the same with the
smallest changes under which it trains: `PEERS` lists them.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple


class Change(NamedTuple):
    """Change of one line of what was installed."""

    file: str
    """Below ``site-packages``."""
    old: str
    new: str


class Peer(NamedTuple):
    packages: tuple[str, ...]
    changes: tuple[Change, ...] = ()


DLROVER = "dlrover[k8s,torch]==0.6.1"
PEERS = {
    "torchft": Peer(("torchft==0.2.0",)),
    "torchft-nightly": Peer(("torchft-nightly==2026.10.26",)),
    "dlrover": Peer((DLROVER,)),
    "dlrover-fixed": Peer(
        # Its master asks for the version of protobuf, which it does not declare.
        (DLROVER, "protobuf"),
        (
            Change(
                # torch 2.8 and later have one argument more.
                "dlrover/trainer/torch/elastic_run.py",
                'SubprocessHandler(cmd, args, {}, "", "", 0)',
                'SubprocessHandler(cmd, args, {}, "", "", 0, None)',
            ),
        ),
    ),
}


def python_of(folder: Path, name: str) -> Path:
    """The interpreter of a peer, if it is installed there."""
    return folder.resolve() / name / "bin" / "python"


def chosen(
    arms: Mapping[str, str | None], folder: Path | None, asked: Sequence[str] | None
) -> dict[str, Path]:
    """The interpreters of the arms that run; those that are not installed are said to be skipped.

    Args:
        arms: arm -> its peer; None: it runs in this interpreter.
        folder: in which peers are installed.
        asked: arms by name; None: all that are installed.

    Raises:
        SystemExit: one of those is not installed.
    """
    found = {}
    for arm in asked or arms:
        peer = arms[arm]
        python = Path(sys.executable)
        if peer is not None:
            install = f"{sys.executable} {Path(__file__)} FOLDER {peer}"
            why = f"not installed; run: {install}, and give it --peers FOLDER"
            python = python_of(folder, peer) if folder else Path()
            if folder is None or not python.exists():
                if asked:
                    raise SystemExit(f"arm {arm}: {why}")
                print(f"skipped: {arm}: {why}", flush=True)
                continue
        found[arm] = python
    return found


def install(folder: Path, name: str) -> None:
    """Raises CalledProcessError, or SystemExit: a line to change is not as expected."""
    peer = PEERS[name]
    subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
    python = python_of(folder, name)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, f"torch=={version('torch')}", *peer.packages], check=True)
    (site,) = (folder / name).glob("lib/python*/site-packages")
    for change in peer.changes:
        file = site / change.file
        text = file.read_text()
        if change.new not in text:
            if text.count(change.old) != 1:
                raise SystemExit(f"{name}: {change.old!r} is not found once in {change.file}")
            file.write_text(text.replace(change.old, change.new))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {', '.join(PEERS)}")
    options = parser.parse_args()
    unknown = set(options.names) - set(PEERS)
    if unknown:
        parser.error(f"no peer is called {', '.join(sorted(unknown))}; known: {', '.join(PEERS)}")
    for name in options.names or PEERS:
        install(options.folder.resolve(), name)
        print(f"{name}: {options.folder / name}")


if __name__ == "__main__":
    main()
