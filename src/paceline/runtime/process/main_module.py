"""The user's script as Python's ``__main__``: how it begins, and all that Python does when it ends.

Also what to say of the error that ends it: whose it is, where, and what was lacking.

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
import signal
import sys
import threading
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import FrameType, FunctionType, ModuleType, TracebackType

import paceline
from paceline.base.errors import ConfigError
from paceline.base.numbering import Inc
from paceline.base.processes import die_with_parent
from paceline.runtime.process.reaching import Unreachable
from paceline.runtime.process.unreadable import unreadable_path
from paceline.wire.messages.node import ScriptError

PATIENCE_S = 3.0
"""Seconds after which a script is said to wait for its threads or exit handlers."""
_PACKAGE = str(Path(paceline.__path__[0]))
_SCHEDULERS = os.path.join("torch", "optim", "lr_scheduler.py")
_LIBRARIES = tuple({f"{prefix}/lib" for prefix in (sys.prefix, sys.base_prefix)})
_OURS = (__file__, *(str(Path(__file__).with_name(name)) for name in ("process.py", "running.py")))
"""Files of the frames that lead to the script."""

_OF_PACKAGE = (
    "paceline: as with python, a file that is run by its path belongs to no package; run it as a "
    "module from the folder that has its package, e.g. paceline run -m pkg.train"
)

_shown = reprlib.Repr()
"""Form of files' names, also of the script's classes that cannot say what they are."""
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
    try:
        exec(loader.source_to_code(Path(path).read_bytes(), path), main.__dict__)
    except ImportError as error:
        if "no known parent package" in str(error):
            error.add_note(_OF_PACKAGE)
        raise


def run_module(name: str) -> None:
    """Run a module as ``python -m name`` does; the rest of ``sys.argv`` is set by the caller."""
    _fresh_main()
    sys.argv[0] = "-m"  # for the packages around it; the module itself finds its file there
    _find_modules_in(os.getcwd())
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _fresh_main() -> ModuleType:
    """Replace the zygote's ``__main__`` for good: exit handlers and pickles look there as well."""
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
    # The type alone decides: `isinstance` asks objects that stand for others what they are.
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
    """Tell whether stdout or stderr write to a file: libraries in C write there after us."""
    return isinstance(file, io.FileIO) and file.fileno() in (1, 2)


def script_error(error: BaseException, inc: Inc, step: int) -> ScriptError:
    """Describe an error for the master, with the user's own traceback.

    Args:
        error: has ended the script.
        inc: of the process.
        step: that was being worked on.
    """
    trace = user_traceback(error)
    is_refusal = isinstance(error, ConfigError)
    shown = None if is_refusal and not user_line(trace) else trace
    return ScriptError(
        inc=inc,
        kind=kind_of(error),
        traceback="".join(traceback.format_exception(type(error), error, shown)),
        in_user_code=raised_in_user_code(trace),
        step=step,
        line=user_line(trace),
        unreadable=unreadable_path(error),
        unreachable=error.peer if isinstance(error, Unreachable) else "",
    )


def kind_of(error: BaseException) -> str:
    """Qualified name of the error's class, as a traceback shows it."""
    kind = type(error)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def user_traceback(error: BaseException) -> TracebackType | None:
    """The traceback without the frames that led to the user's script: ours and runpy's."""
    trace = error.__traceback__
    while trace and _is_launcher(trace.tb_frame):
        trace = trace.tb_next
    return trace


def _is_launcher(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name in _OURS or "runpy" in Path(name).name


def raised_in_user_code(trace: TracebackType | None) -> bool:
    """Tell whether the innermost frame outside of the libraries is the user's, not paceline's.

    True without frames: a script that does not even compile. A scheduler of torch knows nothing but
    what the script gave it, though paceline stands between the two.
    """
    deciding = True
    while trace:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(_PACKAGE + os.sep):
            deciding = False
        elif _is_user_s(name) or name.endswith(_SCHEDULERS):
            deciding = True
        trace = trace.tb_next
    return deciding


def user_line(trace: TracebackType | None) -> str:
    """Say where the script was: file and line of its innermost frame; empty: there is none."""
    found = ""
    while trace:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(_PACKAGE + os.sep) and _is_user_s(name):
            found = f"{Path(name).name}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _is_user_s(name: str) -> bool:
    return not name.startswith(_LIBRARIES) and not name.startswith("<")


def leave_to_script() -> None:
    """Make this fork of a warm process look like a fresh Python."""
    import torch  # a server does without

    # Nobody reads the link while the script runs, so nobody would see that the agent is gone: the
    # kernel ends the process with its parent, which ends with the agent.
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A fresh torch draws its first seed; forks of one process would all have the same.
    torch.seed()
