"""The user's script as Python's ``__main__``: how it begins, and all that Python does when it ends.

A training process is a fork that leaves by ``os._exit``: Python's own end would return through the
frames of the zygote, and take torch apart. So what scripts rely on is done here.
"""

import _io
import atexit
import contextlib
import ctypes
import gc
import io
import os
import reprlib
import runpy
import sys
import threading
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType

PATIENCE_S = 3.0
"""A script whose threads or exit handlers take longer is said to wait for them."""

_shown = reprlib.Repr()
"""How files are named, also those of the script's own classes that cannot say what they are."""
_shown.maxother = 200


def run_file(path: str) -> None:
    """Run a script as ``python path`` does; ``sys.argv`` is set by the caller.

    Args:
        path: of the script. Modules are found in the folder of the file that it links to.
    """
    loader = SourceFileLoader("__main__", path)
    main = _fresh_main()
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
    _find_modules_in(os.path.dirname(os.path.realpath(path)))
    exec(loader.source_to_code(Path(path).read_bytes(), path), main.__dict__)


def run_module(name: str) -> None:
    """Run a module as ``python -m name`` does."""
    _fresh_main()
    _find_modules_in(os.getcwd())
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _fresh_main() -> ModuleType:
    """In place of the zygote's, and for good: exit handlers and pickles look there as well."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    return main


def _find_modules_in(folder: str) -> None:
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, folder)


def finish() -> None:
    """Do what Python does when a script has ended, short of ending the process; again: nothing.

    Threads that are no daemons are waited for, exit handlers run, objects of ``__main__`` are
    finalized, and all open files are flushed.
    """
    over = threading.Event()
    threading.Thread(target=_say_what_is_waited_for, args=(over,), daemon=True).start()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        over.set()
        _flush_streams()
        _drop_main()
        _flush_files()
        _flush_streams()
        # Output of libraries in C, which the standard library of C would flush at its exit.
        ctypes.CDLL(None).fflush(None)


def _say_what_is_waited_for(over: threading.Event) -> None:
    if over.wait(PATIENCE_S):
        return
    waiting = threading.main_thread(), threading.current_thread()
    names = [t.name for t in threading.enumerate() if not (t.daemon or t in waiting)]
    what = f"its threads {', '.join(names)}" if names else "its exit handlers (atexit)"
    _say(
        f"paceline: the script has ended, and Python waits for {what}; the process ends when they "
        "do; after an error of the script its agent kills it at the latest after timeouts.stop_s\n"
    )


def _say(text: str) -> None:
    """Write to the log, past ``sys.stderr``, which the script may have closed."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))


def _drop_main() -> None:
    """Finalize what only the script holds: archives are completed, ``__del__`` runs.

    Functions, classes and modules stay, since finalizers use them.
    """
    main = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", "")
    if main is None or name.startswith("paceline.runtime"):
        return
    # Python would have stopped the daemons by now: what they miss is no error of the script.
    threading.excepthook = lambda _: None
    for key, value in list(main.__dict__.items()):
        if not (key.startswith("__") or isinstance(value, ModuleType | FunctionType | type)):
            del main.__dict__[key]
        del value
    gc.collect()


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _flush_files() -> None:
    """Flush files that are still open, from the outermost layer of each to its innermost."""
    # A script may have frozen its own objects, too.
    gc.unfreeze()
    # By its type alone: `isinstance` asks objects that stand for others what they are.
    found = [one for one in gc.get_objects() if issubclass(type(one), _io._IOBase)]
    for file in sorted(found, key=_depth):
        try:
            if not file.closed and file.writable():
                # Only its close writes the end of a compressed file.
                file.close() if _depth(file) == 1 and not _is_output(file) else file.flush()
        except Exception as error:  # noqa: BLE001 - of a class of the script's; the others count
            _say(f"paceline: {_shown.repr(file)} could not be flushed: {error}\n")


def _depth(file: io.IOBase) -> int:
    """0: text over bytes; 1: written in Python, as gzip's; 2: next to the operating system."""
    if isinstance(file, io.TextIOBase):
        return 0
    return 2 if type(file).__module__ == "_io" else 1


def _is_output(file: io.IOBase) -> bool:
    """Whether it is what stdout or stderr write to: libraries in C write there after us."""
    return isinstance(file, io.FileIO) and file.fileno() in (1, 2)
