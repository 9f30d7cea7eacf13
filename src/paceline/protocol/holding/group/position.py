"""Where the schedule of a job is that its workers hold: global batches in the model."""


class Position:
    """The position of one member, part of its state: members copy it, and cuts keep it.

    A step that lacks samples may complete no global batch, so it is not the number of steps.
    """

    def __init__(self) -> None:
        self.value: int | None = None
        """None: so far, or when the state was written, each step has completed one."""
        self.samples: int | None = None
        """Samples in the model; None: so far nobody has counted them here."""
        self.began: tuple[int, int] | None = (0, 0)
        """Global batches and samples in the model when the training in hand began; None: it has
        not made a step."""

    def at(self, step: int) -> int:
        """Global batches in the model after this step."""
        return step if self.value is None else self.value

    def advance(self, step: int, num_batches: int, *, held: int = 0, more: int = 0) -> None:
        """The step after ``step`` completes so many global batches.

        Args:
            step: the last complete one.
            num_batches: that it completes.
            held: samples in the model before it.
            more: samples of it.
        """
        if self.began is None:
            self.began = self.at(step), held
        self.value, self.samples = self.at(step) + num_batches, held + more

    def next_training(self) -> None:
        """The script begins to train something else."""
        self.began = None

    def of_training(self, batches: int, num_samples: int) -> tuple[int, int]:
        """How much of so many global batches and samples the training in hand has made."""
        before = self.began
        return (0, 0) if before is None else (batches - before[0], num_samples - before[1])
