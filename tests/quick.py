"""``python tests/quick.py FILE...`` checks what is quick to check of a file: `make quick FILE=...`.

Its style, the import contracts, the rules of this house, and the tests of its room: those folders
of tests/unit that are named like a folder on its path, and those that `MORE` names.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
UNIT = Path("tests/unit")
MORE = {
    "src/paceline/features/cluster": "tests/unit/scheduling",
    "src/paceline/features/data": "tests/unit/ctr",
    "src/paceline/master/monitor.py": "tests/unit/decisions",
    "src/paceline/master/restarts.py": "tests/unit/decisions",
    "src/paceline/master/scene.py": "tests/unit/decisions",
    "src/paceline/protocol": "tests/model",
    "src/paceline/runtime/holding": "tests/conformance",
}
"""What is tested by more than its room, or elsewhere."""


def tests_of(path: Path) -> list[str]:
    """Folders of tests for a file, whose path begins at the root."""
    own = [str(path)] if path.name.startswith("test_") else []
    rooms = [str(UNIT / part) for part in path.parts[:-1] if (ROOT / UNIT / part).is_dir()]
    more = [tests for folder, tests in MORE.items() if path.is_relative_to(folder)]
    return [*own, *rooms, *more]


def main(files: list[str]) -> int:
    """Check all of them; the first exit code that is not 0."""
    if not files:
        print("make quick FILE=src/paceline/...: name a file, or several", file=sys.stderr)
        return 2
    paths = [Path(file).resolve().relative_to(ROOT) for file in files]
    tests = dict.fromkeys(test for path in paths for test in tests_of(path))
    python, options = sys.executable, ["-q", "-n", "auto", "--dist", "worksteal", "-m", "not soak"]
    for command in (
        [python, "-m", "ruff", "check", "."],
        [python, "-m", "ruff", "format", "--check", "."],
        [str(Path(python).with_name("lint-imports"))],
        [python, "-m", "pytest", *options, *tests, str(UNIT / "house")],
    ):
        print("==", *command, flush=True)
        if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
