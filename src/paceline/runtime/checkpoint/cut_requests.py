"""A worker's wish for a cut: said to the master until it is fulfilled."""

from msgspec.structs import replace

from paceline.base.numbering import EpochNo, Inc, StepNo
from paceline.wire.messages.node import AskCut, CutMade


class CutAsker:
    """The cuts that one process asks for. The newest wish stands for those before it."""

    def __init__(self, inc: Inc) -> None:
        self._inc = inc
        self._asked: AskCut | None = None
        self._num_asked = 0

    def ask(self, epoch_no: EpochNo, step: int, *, leaves: bool = False) -> list[AskCut]:
        """Wish for a cut with this step in it; 0: of what the model holds now.

        ``leaves``: we go once it is made.
        """
        self._num_asked += 1
        self._asked = AskCut(
            epoch_no=epoch_no, inc=self._inc, n=self._num_asked, step=StepNo(step), leaves=leaves
        )
        return self.resend()

    def went_back(self, epoch_no: EpochNo) -> None:
        """What was to be kept is gone: then what there is instead."""
        if self._asked is not None and self._asked.epoch_no != epoch_no:
            self._asked = replace(self._asked, epoch_no=epoch_no, step=0)

    def resend(self) -> list[AskCut]:
        """What is to be said (again) to the master."""
        return [] if self._asked is None else [self._asked]

    @property
    def waits(self) -> bool:
        """Whether a wish is unfulfilled."""
        return self._asked is not None

    def made(self, message: CutMade) -> None:
        """The master's answer."""
        if self._asked is not None and message.n >= self._asked.n:
            self._asked = None
