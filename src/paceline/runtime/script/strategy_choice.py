"""Choice of the strategy that trains a script: that of its job, else that which fits its model."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from torch import nn
from torch.optim import Optimizer

from paceline.base.errors import ConfigError
from paceline.runtime.holding.local.strategy import Local
from paceline.runtime.process.process import Process, managed
from paceline.runtime.script.embedding import is_table
from paceline.runtime.script.prepared import check_parameters
from paceline.runtime.script.strategy import Strategy
from paceline.wire.spec import JobSpec


def strategy_here(before: Strategy | None = None) -> Strategy:
    """Make the strategy of the job that this process was started for.

    Args:
        before: with which the script has joined that job already; returned if the script may train
            something else with it.

    Raises:
        ConfigError: it can join no job, or not again.
    """
    if "PACELINE_NODE" not in os.environ:
        return Local(JobSpec(script=os.path.abspath(sys.argv[0])))
    process = managed()
    if process.joined:
        if before is not None and before.takes_trainings:
            return before
        if before is None:
            raise ConfigError(
                "pl.init() was called in a script that trains with Lightning, Accelerate or "
                "Hugging Face's Trainer, which has joined the job already; leave pl.init() out"
            )
        raise ConfigError(
            f"pl.init() was called again in a job of strategy {process.spec.strategy}, which "
            "trains once; run it with --strategy allreduce, or start a job for each training, as "
            "in `paceline run train.py -- --fold 1`"
        )
    if not process.spec.traits.trains:
        raise ConfigError(
            f"pl.init() in a job of strategy {process.spec.strategy}, which deals out no samples; "
            "start it with --strategy allreduce or ps, and without flags of torchrun"
        )
    strategy = _strategy_of(process)
    process.join(strategy.hand_over)
    return strategy


def _strategy_of(process: Process) -> Strategy:
    strategy: Strategy = import_module(process.spec.traits.module).begin(process)
    return strategy


def fitting(
    strategy: Strategy, modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]
) -> Strategy:
    """Return the strategy that fits: ps for a lone script with sparse tables, else the given one.

    Raises:
        ConfigError: parameters that it cannot train.
    """
    alone = isinstance(strategy, Local)
    if alone and any(is_table(one) for root in modules for one in root.modules()):
        # Their kernels are compiled with numba, which is of an extra.
        from paceline.runtime.holding.servers.in_process import Alone
        from paceline.runtime.holding.servers.strategy import OnServers

        strategy = OnServers(Alone(strategy.spec), strategy.script_state)
    check_parameters(modules, optimizers, alone=isinstance(strategy, Local))
    return strategy
