"""Where the schedule of a job is that its workers hold: global batches in the model."""


class Position:
    """The position of one member, part of its state: members copy it, and cuts keep it.

    A step that lacks samples may complete no global batch, so it is not the number of steps.
    """

    def __init__(self) -> None:
        self.value: int | None = None
        """None: so far, or when the state was written, each step has completed one."""

    def at(self, step: int) -> int:
        """Global batches in the model after this step."""
        return step if self.value is None else self.value

    def advance(self, step: int, num_batches: int) -> None:
        """The step after ``step`` completes so many global batches."""
        self.value = self.at(step) + num_batches
