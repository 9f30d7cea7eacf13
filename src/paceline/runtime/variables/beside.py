"""Things that a loop's body changes beside variables: iterators in a zip, and module buffers."""

from types import FrameType

from paceline.runtime.variables import frames
from paceline.runtime.variables.forward import ForwardBuffers


class BesideVariables:
    """Where both were at a mark."""

    def __init__(self) -> None:
        self.buffers = ForwardBuffers()
        """Buffers of the prepared modules."""
        #: Whether the loop zips something with its batches; None: not looked for in this one. No
        #: iterator is kept: a script that leaves its loop lets go of them, and that ends the loop.
        self._zips: bool | None = None
        self._at = list[frames.IteratorAt | None]()

    def begin_loop(self) -> None:
        """Another loop begins."""
        self._zips = None

    def keep(self, frame: FrameType) -> None:
        """Keep where they are; ``frame`` waits for a batch."""
        self.buffers.keep()
        self._at = []
        if self._zips is None or self._zips:
            self._at = [*map(frames.reached, frames.zipped_with_batches(frame))]
            self._zips = bool(self._at)

    def undo(self, frame: FrameType) -> bool:
        """Put them back; whether those that are known could be."""
        is_whole = self.buffers.undo()
        zipped = frames.zipped_with_batches(frame) if self._zips else []
        for one, at in zip(zipped, self._at, strict=False):
            is_whole &= at is None or frames.reach(one, at, back=True)
        return is_whole

    def lost(self, frame: FrameType) -> str:
        """Name what cannot be put back; see `frames.lost_in_zip`."""
        return frames.lost_in_zip(frame) if self._zips else ""
