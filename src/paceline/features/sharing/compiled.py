"""Small C++ libraries that are compiled against torch where they are first needed, and kept.

    path = compiled(CPU_ARENA)    # 1 s the first time, then the file that lies in PACELINE_HOME

The file's name has a hash of all that it is made of, so it is never the wrong one. Processes that
need it at the same time each make it, and the last one's takes its place. Torch is not imported.
"""

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
from pathlib import Path

from paceline.base.errors import ConfigError
from paceline.base.jobdir import home
from paceline.base.private_folders import make_private

_SOURCES = Path(__file__).with_name("process")
CPU_ARENA = _SOURCES / "cpu_arena.cpp"
"""The memory of cores that jobs share."""
CUDA_HOST = _SOURCES / "cuda_host.cpp"
"""Memory of the host for GPUs that jobs share."""
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++20", "-O2", "-shared", "-fPIC")
COMPILE_S = 120.0
_LAST_LINES = 5
"""Lines of a compiler's complaint that an error quotes, from its end."""


def compiled(source: Path) -> Path:
    """Return the library of a source, compiled if it is not there yet.

    Raises:
        ConfigError: there is no compiler, or it failed.
    """
    torch = _torch()
    parts = (source.read_text(), (torch / "version.py").read_text(), platform.machine(), *FLAGS)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    path = home() / "compiled" / f"{source.stem}-{key}.so"
    if not path.exists():
        home().mkdir(parents=True, exist_ok=True)
        make_private(path.parent)
        _compile(source, torch, path)
    return path


def _torch() -> Path:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise ConfigError("got no torch, expected its headers; install torch")
    return Path(found.origin).parent


def _compile(source: Path, torch: Path, path: Path) -> None:
    asked = os.environ.get("CXX")
    names = (asked,) if asked else COMPILERS
    compiler = next(filter(None, map(shutil.which, names)), None)
    if compiler is None:
        raise ConfigError(
            f"got no C++ compiler ({', '.join(names)}), expected one for {source.name}; install "
            "one, e.g. `apt install g++`, or set CXX"
        )
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    command = [
        *(compiler, *FLAGS, str(source), "-o", str(fresh)),
        *(f"-I{torch / 'include'}", f"-L{torch / 'lib'}", "-lc10"),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_S)
        fresh.replace(path)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        last = "\n".join(said.strip().splitlines()[-_LAST_LINES:])
        raise ConfigError(
            f"{compiler} failed for {source.name}; expected a compiler of C++20 that fits torch's "
            f"headers in {torch / 'include'}; set CXX to another one. It said:\n{last}"
        ) from error
    finally:
        fresh.unlink(missing_ok=True)
