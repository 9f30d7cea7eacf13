"""Shells in pseudo-terminals that are typed into, and all that they have shown, with its times.

The pictures need ``pyte``, which interprets the control sequences of a terminal:
``pip install -e './experiments[pictures]'``.
"""

import fcntl
import os
import pty
import re
import signal
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte

from paceline_experiments.pictures.drawing import Line, Run, Screen

KEY_S = 0.05
"""Seconds between two keys that are pressed."""
TOGETHER_S = 0.04
"""Output that follows within this time belongs to the same screen: a picture is not cut in two."""
POLL_S = 0.05
DIM = re.compile(r"\x1b\[2(?=[;m])")
"""Order to write dimly, which ``pyte`` does not know; italics stand for it."""
ITALICS = "\x1b[3"


class Heard(NamedTuple):
    """Output of a shell."""

    at_s: float
    text: str


class RecordedShell:
    """A shell in a pseudo-terminal of a fixed size."""

    def __init__(
        self, columns: int, rows: int, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self.columns, self.rows = columns, rows
        self._heard: list[Heard] = []
        self._pid, self._descriptor = pty.fork()
        if not self._pid:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, size)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except OSError:  # the shell has ended
                return
            self._heard.append(Heard(time.monotonic(), data.decode(errors="replace")))

    def type(self, command: str) -> None:
        """Type a command as a person does, and press Enter."""
        for key in f"{command}\r":
            os.write(self._descriptor, key.encode())
            time.sleep(KEY_S)

    def await_screen(self, is_reached: Callable[[str], bool], patience_s: float) -> None:
        """Wait until the text of the screen is as wanted.

        Raises:
            TimeoutError: it is not in time; the error shows the screen.
        """
        until_s = time.monotonic() + patience_s
        while not is_reached(text := self._text()):
            if time.monotonic() > until_s:
                raise TimeoutError(f"after {patience_s:g} s the terminal still shows:\n{text}")
            time.sleep(POLL_S)

    def _text(self) -> str:
        screen = pyte.Screen(self.columns, self.rows)
        pyte.Stream(screen).feed("".join(heard.text for heard in list(self._heard)))
        return "\n".join(line.rstrip() for line in screen.display)

    def close(self) -> None:
        """End the shell."""
        os.kill(self._pid, signal.SIGHUP)
        os.waitpid(self._pid, 0)
        self._reader.join()
        os.close(self._descriptor)

    def screens(self) -> Iterator[Screen]:
        """Yield each screen that differs from the one before."""
        screen = pyte.Screen(self.columns, self.rows)
        stream = pyte.Stream(screen)
        before: tuple[Line, ...] = ()
        for number, heard in enumerate(self._heard):
            stream.feed(DIM.sub(ITALICS, heard.text))
            rest = self._heard[number + 1 : number + 2]
            if rest and rest[0].at_s - heard.at_s < TOGETHER_S:
                continue
            if (lines := _lines(screen)) != before:
                before = lines
                yield Screen(heard.at_s, lines)


def _lines(screen: pyte.Screen) -> tuple[Line, ...]:
    rows = (
        [screen.buffer[row][column] for column in range(screen.columns)]
        for row in range(screen.lines)
    )
    return tuple(tuple(_runs(cells)) for cells in rows)


def _runs(cells: list[pyte.screens.Char]) -> Iterator[Run]:
    column = 0
    for (colour, bold), group in groupby(cells, key=_look):
        text = "".join(cell.data for cell in group)
        if text.strip():
            yield Run(column, text, colour, bold)
        column += len(text)


def _look(cell: pyte.screens.Char) -> tuple[str, bool]:
    is_dim_text = cell.italics and cell.fg == "default"
    return "dim" if is_dim_text else cell.fg, cell.bold
