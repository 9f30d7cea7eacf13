"""How far training is, as one worker of parameter servers reckons."""

from paceline.base.samples import Span
from paceline.runtime.data.work import Work
from paceline.runtime.holding.servers.reckoning import Reckoning
from paceline.wire.messages.feeds import Feed


def feed(number: int, num_samples: int | None = 100, epochs: int = 2) -> Feed:
    return Feed(
        feed=number,
        purpose="train",
        num_samples=num_samples,
        epochs=epochs,
        batch_size=10,
        shard_size=10,
        shuffle=False,
        seed=0,
    )


def work(size: int, *, of: int = 0, step: int = 0, ends_step: bool = True) -> Work:
    return Work(of, (Span(of << 20, 0, size),), size, step, ends_step=ends_step)


def test_nothing_is_known_before_the_first_batch() -> None:
    assert Reckoning().now is None


def test_in_a_synchronous_step_the_last_share_brings_the_whole_step() -> None:
    known = Reckoning()
    known.begin(work(3, step=5, ends_step=False), 40, 10)
    assert (known.now, known.with_step) == (40, 50)
    known.took()
    assert (known.now, known.with_step) == (40, 50), "the step lacks another share"
    known.begin(work(2, step=5), 40, 10)
    known.took()
    assert (known.now, known.with_step) == (50, 50)


def test_without_steps_a_batch_brings_its_samples_to_what_the_model_has() -> None:
    known = Reckoning()
    known.begin(work(5), 40, 0)
    assert (known.now, known.with_step) == (40, 45)
    known.took()
    assert known.now == 45
    known.begin(work(5), 65, 0)  # with what others have trained
    assert known.now == 65


def test_alone_batches_add_up() -> None:
    known = Reckoning()
    for _ in range(3):
        known.begin(work(5), None, 0)
        known.took()
    assert known.now == 15


def test_a_feed_that_is_complete_counts_whole_and_the_next_one_begins_after_it() -> None:
    known = Reckoning()
    known.begin(work(5), 40, 0)
    known.complete(feed(0))
    assert known.now == 200
    known.begin(work(5, of=1), 0, 0)
    assert (known.now, known.with_step) == (200, 205)
    known.complete(feed(2, num_samples=None))  # a stream has no whole
    assert known.now == 200


def test_a_model_that_goes_back_has_fewer() -> None:
    known = Reckoning()
    known.begin(work(10, step=9), 80, 10)
    known.took()
    known.begin(work(10, step=5), 40, 10)
    assert (known.now, known.with_step) == (40, 50)
