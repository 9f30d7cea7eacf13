"""The warm process of a node: imports what training needs, then forks training processes.

A fork of the job's template (`paceline.runtime.process.template`), or started by the agent before
anything in it had threads; has one thread itself at every fork, which is what makes forking safe.
``python -m paceline.runtime.process.zygote --fd N --for KIND``: N is a socket of a pair shared with
the agent (`paceline.wire.zygote`), and the kind says what is imported. Ends when the agent does;
its children live on. That of a server, or of a program that is no script of Python, never imports
torch.
"""

import argparse
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from paceline.base import features
from paceline.base.numbering import Inc
from paceline.base.optional import complaint
from paceline.base.processes import ROOM, kill_group_quietly
from paceline.jobs.zygotes import environment_digest
from paceline.runtime.process import main_module, template
from paceline.runtime.process.output import print_to, replace_streams
from paceline.wire.zygote import Died, Fork, Forked, Warm, receive_fork, send

SERVED = "paceline.runtime.holding.servers.client"
"""Needed by workers whose model is on servers; its kernels need the extra `servers`."""
PRELOAD = {
    "worker": (
        "torch",
        "numpy.random",
        "paceline.runtime.process.running",
        "paceline.runtime.script.job",
        "paceline.runtime.script.averages",  # which notes those that are made before pl.init()
        SERVED,
    ),
    "server": ("paceline.runtime.process.running", "paceline.runtime.server.server"),
    "script": ("torch", "torch._dynamo", "numpy.random", "paceline.runtime.process.running"),
    "program": ("paceline.runtime.process.running",),
}
"""Modules imported before the first fork; a script trains on its own, by what it imports itself."""


class Zygote:
    """Serves fork requests until the agent hangs up."""

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        self._selector = selectors.DefaultSelector()
        self._selector.register(pair, selectors.EVENT_READ)

    def serve(self) -> None:
        """Return when the agent is gone."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._pair:
                    self._report_death(key.fd, *key.data)
                elif not self._serve_request():
                    return

    def _serve_request(self) -> bool:
        request = receive_fork(self._pair)
        if request is None:
            return False
        pid = os.fork()
        if pid == 0:
            self._selector.close()
            self._pair.close()
            run_child(request)
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (request.inc, pid))
        send(self._pair, Forked(inc=request.inc, pid=pid))
        return True

    def _report_death(self, pidfd: int, inc: Inc, pid: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)
        # Before it is reaped its number, and so its group's, cannot belong to anybody else.
        kill_group_quietly(pid)
        _, status = os.waitpid(pid, 0)
        send(self._pair, Died(inc=inc, pid=pid, status=status))


def run_child(request: Fork) -> NoReturn:
    """Become the training process; never returns into the zygote's loop."""
    code = os.EX_SOFTWARE  # not even the process's own error handling could run
    try:
        os.setsid()
        _become_node_process(request)
        # Imported late: with numpy, which reads what `warm_up` puts into the environment.
        from paceline.runtime.process import running

        code = running.main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _leave(code)


def _become_node_process(request: Fork) -> None:
    # Where memory is short the kernel shall end the training process, not the zygote.
    Path("/proc/self/oom_score_adj").write_text("500")
    print_to(request.log)
    replace_streams()
    os.environ.update(request.env)
    # Python reseeds its own generator after a fork, numpy and torch do not: two lives of a node, or
    # the nodes of one template, would draw the same "random" numbers.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _leave(code: int) -> NoReturn:
    """Do what Python does at exit, but do not return through the zygote's frames."""
    try:
        main_module.finish()
    finally:
        os._exit(code & 0xFF)


def main() -> None:
    """Entry point of ``python -m paceline.runtime.process.zygote``."""
    parser = argparse.ArgumentParser()
    role = parser.add_mutually_exclusive_group(required=True)
    role.add_argument("--fd", type=int, help="socket of the agent")
    role.add_argument("--listen", type=int, help="be the template; where agents connect")
    parser.add_argument("--parent", type=int, help="the process that the template ends with")
    parser.add_argument("--for", choices=sorted(PRELOAD), required=True, dest="kind")
    parser.add_argument("--preload", action="append", default=[], help="a module beside those")
    parser.add_argument("--join", action="append", default=[], help="control group to enter")
    parser.add_argument("--core", action="append", default=[], type=int, help="to be bound to")
    options = parser.parse_args()
    # The agent decides what an interrupt or an end means for its node.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if options.listen is not None:
        template.follow(options.parent)
    started_s = time.monotonic()
    # Here and not in each child: changing groups takes the kernel up to 20 ms, a fork inherits.
    for path in options.join:
        Path(path).write_text("0")
    if options.core:
        os.sched_setaffinity(0, options.core)
    environment = environment_digest(os.environ)
    os.environ.pop(ROOM, None)
    warm_up(options.kind, options.preload)
    if options.listen is not None:
        pair, warm = template.fork_zygotes(socket.socket(fileno=options.listen), environment)
    else:
        pair = socket.socket(fileno=options.fd)
        warm = Warm(pid=os.getpid(), import_s=time.monotonic() - started_s)
    with suppress(BrokenPipeError, ConnectionResetError):  # as if it had hung up in between
        send(pair, warm)
        Zygote(pair).serve()
    # Nothing is left to do, and to take apart what was imported would take 0.2 s of a processor.
    os._exit(0)


def warm_up(kind: str, preload: Sequence[str]) -> None:
    """Import what lives of the kind need, and the modules to preload."""
    # Looking for garbage among what is imported took a quarter of the time, and freed nothing.
    gc.disable()
    # Read when torch is imported. Idle threads of OpenMP spin by default, on cores that the servers
    # and the other workers of this machine need: seen to double a worker's time.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Whether there are GPUs: asked of the driver's library, since a process that has asked CUDA
    # itself cannot hand it to its forks. Libraries ask while they are imported.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if kind in ("worker", "script"):
        for _ in features.parts_of("process", features.say_failed):
            pass  # loaded, which is all
    kernels_lack = complaint("a model on servers", "numba", "llvmlite")
    for name in (*PRELOAD[kind], *preload):
        if not (kernels_lack and name == SERVED):
            importlib.import_module(name)
    if kernels_lack and kind == "worker":
        importlib.import_module("torch._dynamo")
    elif kind in ("server", "worker"):
        rehearsal = importlib.import_module("paceline.runtime.server.rehearsal")
        (rehearsal.rehearse_server if kind == "server" else rehearsal.rehearse_worker)()
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    main()
