"""What a decision can do to a job, and what it cannot."""

from types import SimpleNamespace

import msgspec
import pytest

from paceline.base.errors import ConfigError
from paceline.master.monitor import Monitor
from paceline.master.scene import Scene
from paceline.policy.actions import AnyAction, BackupWorkers, KillRestart
from paceline.protocol.nodes.lives import Fate, LifePhase
from tests.unit.decisions.test_monitor import Training


class Stage:
    """A scene over two servers and three workers."""

    def __init__(self, mode: str = "asp") -> None:
        self.job = Training(mode, 3)
        self.restarted: list[tuple[str, str]] = []
        self.global_actions: list[AnyAction] = []
        training = SimpleNamespace(
            state=self.job.state, leasing=SimpleNamespace(carry_out=self.global_actions.append)
        )
        self.scene = Scene(
            training,  # type: ignore[arg-type]
            self.job.members,
            Monitor(),
            pending_s=lambda: None,
            restart=lambda node, reason: self.restarted.append((node, reason)),
        )


def test_a_worker_is_restarted_and_the_rest_is_the_trainings_affair() -> None:
    stage = Stage()
    stage.scene.carry_out(KillRestart(node="worker-1", reason="slow"))
    stage.scene.carry_out(BackupWorkers(count=1))
    assert stage.restarted == [("worker-1", "slow")]
    assert stage.global_actions == [BackupWorkers(count=1)]


@pytest.mark.parametrize("state", ["unknown", "dead", "leaving"])
def test_who_went_away_between_question_and_answer_is_not_restarted(state: str) -> None:
    stage = Stage()
    node = stage.job.members.roster.nodes["worker-1"]
    node.life.phase = LifePhase.ENDED if state == "dead" else LifePhase.RUNNING
    node.fate = Fate.LEAVES if state == "leaving" else Fate.STAYS
    name = "worker-9" if state == "unknown" else "worker-1"
    with pytest.raises(ConfigError, match=f"{name} has ended meanwhile, or is about to leave"):
        stage.scene.carry_out(KillRestart(node=name))
    assert stage.restarted == []


def test_a_server_is_restarted_as_well() -> None:
    stage = Stage()
    stage.scene.carry_out(KillRestart(node="server-0", reason="slow"))
    assert stage.restarted == [("server-0", "slow")]


def test_iterations_are_steps_of_the_job_or_of_its_mean_worker() -> None:
    stage = Stage("bsp")
    stage.job.state.step = 12
    progress = stage.scene.progress(3.0)
    assert (progress.t_s, progress.committed, progress.total) == (3.0, 0, 200)
    assert stage.scene.iterations(progress) == 12
    asynchronous = Stage().scene
    progress = asynchronous.progress(3.0)
    progress = type(progress)(3.0, 63, 200)
    assert asynchronous.iterations(progress) == 63 // 3 / 3


def test_what_is_seen_has_the_platform_s_word() -> None:
    stage = Stage()
    seen = stage.scene.observe(stage.scene.progress(5.0), since_action_s=2.0)
    assert seen is not None
    assert (seen.now_s, seen.pending_s, seen.since_action_s) == (5.0, None, 2.0)
    stage.scene.since_action_s = lambda now_s: now_s - 1.5
    assert stage.scene.now(5.0) == msgspec.structs.replace(seen, since_action_s=3.5)
    stage.job.state.holder.restoring = {1}
    assert stage.scene.observe(stage.scene.progress(5.0), None) is None
