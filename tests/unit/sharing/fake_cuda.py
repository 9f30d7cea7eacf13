"""A stand-in for `torch.cuda`: one GPU that works through its queue in a time of its own."""

from typing import Any


class FakeEvent:
    """Done when the GPU has come to it; each look at it lets time pass."""

    def __init__(self, cuda: "FakeCuda") -> None:
        self._cuda = cuda
        self.at_s = 0.0

    def record(self, _stream: object) -> None:
        self._cuda.num_records += 1
        self.at_s = max(self._cuda.now_s, self._cuda.done_s)

    def query(self) -> bool:
        done = self._cuda.now_s >= self.at_s
        if not done:
            self._cuda.now_s += self._cuda.look_s
        return done

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert end.query()
        return (end.at_s - self.at_s) * 1e3


class FakeCuda:
    """What `CudaDevice` asks torch for."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.now_s = self.done_s = 0.0
        """Now, and when all that is queued will be done."""
        self.look_s = 1e-4
        self.is_on, self.captures = True, False
        self.num_records = 0

    def launch(self, work_s: float, launch_s: float = 1e-5) -> None:
        """Give the GPU work, which takes this thread a moment."""
        self.now_s += launch_s
        self.done_s = max(self.done_s, self.now_s) + work_s

    def is_available(self) -> bool:
        return self.count > 0

    def device_count(self) -> int:
        return self.count

    def is_initialized(self) -> bool:
        return self.is_on

    def is_current_stream_capturing(self) -> bool:
        return self.captures

    def current_stream(self, _index: int) -> object:
        return None

    def Event(self, **_options: Any) -> FakeEvent:  # noqa: N802 - torch's name
        return FakeEvent(self)
