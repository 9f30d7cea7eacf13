"""What a loop's body changes beside variables: what a zip reads, buffers of a forward pass."""

from types import FrameType
from typing import Any

from paceline.runtime.variables import frames
from paceline.runtime.variables.forward import ForwardBuffers


class BesideVariables:
    """Where both were at a mark."""

    def __init__(self) -> None:
        self.buffers = ForwardBuffers()
        """Of the prepared modules."""
        #: What the loop zips with its batches; None: not looked for in this one.
        self._zipped: list[Any] | None = None
        self._at = list[frames.IteratorAt | None]()

    def begin_loop(self) -> None:
        """Another loop begins."""
        self._zipped = None

    def keep(self, chain: list[FrameType]) -> None:
        """Keep where they are; ``chain``: the script's frames, which wait for a batch."""
        self.buffers.keep()
        if self._zipped is None:
            self._zipped = frames.zipped_with_batches(chain[0]) if chain else []
        self._at = [*map(frames.reached, self._zipped)]

    def undo(self) -> bool:
        """Put them back; whether those that are known could be."""
        is_whole = self.buffers.undo()
        for one, at in zip(self._zipped or (), self._at, strict=True):
            is_whole &= at is None or frames.reach(one, at, back=True)
        return is_whole

    def lost(self, chain: list[FrameType]) -> str:
        """Name what cannot be put back; see `frames.lost_in_zip`."""
        return frames.lost_in_zip(chain[0]) if self._zipped else ""
