"""What a script keeps in ``job.state`` is that of an undisturbed run, whichever worker dies, and the master."""

from pathlib import Path

import pytest

from tests.integration.running import run_group

SCRIPT = Path(__file__).with_name("jobs") / "averaged.py"


def ends(
    out: Path, *flags: str, workers: int, deaths: int = 0, master_dies_at: int | None = None
) -> list[list[float]]:
    """What each worker held at its end: numbers of rates and averages, and their sums."""
    out.mkdir()
    run_group(SCRIPT, out, *flags, workers=workers, deaths=deaths, master_dies_at=master_dies_at)
    found = [path.read_text().split() for path in sorted(out.glob("*.end"))]
    assert len({tuple(one) for one in found}) == 1, found
    return [[int(one[0]), int(one[1]), *map(float.fromhex, one[2:])] for one in found]


@pytest.mark.soak
@pytest.mark.parametrize(("who", "named"), [(0, ("--named",)), (0, ()), (1, ())])
@pytest.mark.proves(form="averages", strategy="allreduce", death=("worker", "master"))
def test_an_average_and_a_rate_by_hand_are_those_of_one_worker(
    who: int, named: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    (single,) = ends(tmp_path / "alone", workers=1)
    flags = ("--die", f"{who}:20", "--step-s", "0.1", *named)
    disturbed = ends(tmp_path / "two", *flags, workers=2, deaths=1, master_dies_at=64 * 22)
    assert len(disturbed) == 2
    assert single[:2] == disturbed[0][:2] == [64, 64]
    assert disturbed[0][2:] == pytest.approx(single[2:], rel=1e-12)
