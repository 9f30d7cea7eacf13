"""The paper's experiments at the size of one machine: the presets of ``paceline bench``."""

from functools import partial

import msgspec

from paceline.base.errors import ConfigError
from paceline.features.stragglers.policy.registry import solution
from paceline_experiments.sim.patterns import AnyPattern, Persistent
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.stragglers.catalogue import always
from paceline_experiments.stragglers.experiments import Experiment, Preset
from paceline_experiments.stragglers.methods import (
    ASYNCHRONOUS,
    AUTO,
    BOUNDED,
    BSP,
    ND,
    OVER_TIME,
    SYNCHRONOUS,
    solution_of,
)
from paceline_experiments.stragglers.presets import (
    INTENSITIES,
    LOCAL_BATCH,
    SERVERS,
    WORKERS,
    ScaleFactors,
    server_straggler,
    worker_stragglers,
)
from paceline_experiments.stragglers.results import Method

SAMPLES = 256
"""Samples in a worker's batch, for the paper's 4,096: they are dealt and counted, not computed."""
WORST = 0.8


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """Part of an experiment that fits on a machine."""

    workers: int = WORKERS
    servers: int = SERVERS
    scale: ScaleFactors = ScaleFactors(time=0.1, steps=0.1)


def shrunk(scenario: Scenario, size: Size) -> Scenario:
    """Make the same scenario with fewer nodes, and fewer samples that take longer each.

    Persistent stragglers that fall away with their node become the last node's.
    """
    steps = scenario.num_samples // scenario.batch_size
    batch_size = size.workers * SAMPLES
    per_sample_s = scenario.compute.per_sample_s * LOCAL_BATCH / SAMPLES
    return msgspec.structs.replace(
        scenario,
        workers=size.workers,
        servers=size.servers,
        batch_size=batch_size,
        num_samples=steps * batch_size,
        compute=msgspec.structs.replace(scenario.compute, per_sample_s=per_sample_s),
        patterns=tuple(_within(pattern, size) for pattern in scenario.patterns),
    )


def _within(pattern: AnyPattern, size: Size) -> AnyPattern:
    if not isinstance(pattern, Persistent):
        return pattern
    last = (size.workers if pattern.role == "worker" else size.servers) - 1
    return msgspec.structs.replace(pattern, nodes=tuple(min(i, last) for i in pattern.nodes))


def scaled(method: Method, scenario: Scenario, steps: float) -> Method:
    """The method with the periods that the shorter job asks for, and a part of its workers."""
    if method.windows == "paper":
        period = solution_of(method, scenario)
        every_s, every_steps = period.every_s, period.every_steps
    else:
        period = solution(method.solution, method.parameters)
        every_s = period.every_s * scenario.time_scale
        # 0 would be at any time.
        every_steps = max(min(period.every_steps, 1), round(period.every_steps * steps))
    parameters = {"every_s": every_s, "every_steps": every_steps, **method.parameters}
    if "count" in parameters:
        parameters["count"] = max(1, int(parameters["count"]) * scenario.workers // WORKERS)
    return msgspec.structs.replace(method, parameters=parameters)


def _experiments(
    mode: str, intensities: tuple[float, ...], methods: tuple[Method, ...], size: Size
) -> list[Experiment]:
    found = []
    for kind in (worker_stragglers, server_straggler):
        for intensity in intensities:
            scenario = shrunk(kind(intensity, mode, size.scale), size)
            fit = partial(scaled, scenario=scenario, steps=size.scale.steps)
            draw = partial(always, scenario=scenario)
            trails = OVER_TIME if intensity == WORST else ()
            of_this = tuple(map(fit, methods))
            found.append(Experiment(draw=draw, methods=of_this, trails=trails, fit=fit))
    return found


def presets(size: Size) -> dict[str, Preset]:
    """Return all presets, by name."""
    about = f"{size.workers} workers and {size.servers} servers"
    table_3 = _experiments("bsp", INTENSITIES, SYNCHRONOUS, size)
    asynchronous = _experiments("asp", (WORST,), ASYNCHRONOUS, size)
    bounded = _experiments("ssp", (WORST,), BOUNDED, size)
    every = [
        Preset(
            name="table3",
            about="Table III: BSP, ND and auto at four straggler intensities",
            experiments=tuple(_experiments("bsp", INTENSITIES, (BSP, ND, AUTO), size)),
        ),
        Preset(
            name="fig10",
            about="Figure 10: methods in BSP at intensity 0.8",
            experiments=tuple(_experiments("bsp", (WORST,), SYNCHRONOUS, size)),
        ),
        Preset(
            name="fig11",
            about="Figure 11: methods in ASP at intensity 0.8",
            experiments=tuple(asynchronous),
        ),
        Preset(
            name="ssp",
            about="methods in SSP with a staleness of 3, at intensity 0.8",
            experiments=tuple(bounded),
        ),
        Preset(
            name="paper",
            about="every method in every row of Table III, and in ASP and SSP at 0.8",
            experiments=(*table_3, *asynchronous, *bounded),
        ),
        Preset(
            name="worst",
            about="one worker and one server straggler at 0.8: BSP, ND and auto",
            experiments=tuple(_experiments("bsp", (WORST,), (BSP, ND, AUTO), size)),
        ),
    ]
    note = (
        f"Scaled: {about}, time x {size.scale.time:g}, iterations x {size.scale.steps:g}; the "
        f"paper's times, of {WORKERS} workers and {SERVERS} servers, are multiplied by both. Job "
        "completion times count from the first step to the last, without the start of processes."
    )
    return {each.name: msgspec.structs.replace(each, notes=(note,)) for each in every}


def preset_of(name: str, size: Size) -> Preset:
    """A preset by name.

    Raises:
        ConfigError: there is none.
    """
    known = presets(size)
    if name not in known:
        raise ConfigError(f"no preset {name!r}; there are {', '.join(known)}")
    return known[name]
