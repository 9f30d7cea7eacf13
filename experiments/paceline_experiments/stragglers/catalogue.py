"""The experiments by name: those of the paper, and ours."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from paceline.base.errors import ConfigError
from paceline_experiments.sim.scenarios import Scenario
from paceline_experiments.stragglers import families, pai, production
from paceline_experiments.stragglers.experiments import FIRST_EVALUATION_SEED, Experiment, Preset
from paceline_experiments.stragglers.methods import (
    ASP,
    ASP_DDS,
    ASYNCHRONOUS,
    AUTO,
    BACKUP,
    BACKUP_TENTH,
    BOUNDED,
    BSP,
    DD,
    DDP,
    LB_BSP,
    ND,
    ND_OWN,
    OVER_TIME,
    PARTIAL,
    SYNCHRONOUS,
)
from paceline_experiments.stragglers.presets import (
    CHECKPOINTS_MIN,
    FIG18_SIZES,
    INTENSITIES,
    MOBILENET_REDUCE,
    RESNET_REDUCE,
    WORKERS,
    dedicated,
    killed,
    large,
    managed,
    server_straggler,
    undisturbed,
    worker_stragglers,
)
from paceline_experiments.stragglers.results import Method

ANY_SIZE = (BSP, BACKUP_TENTH, LB_BSP, ND, ND_OWN, PARTIAL, AUTO)
"""Methods for synchronous jobs of other sizes than the paper's."""
OF_FAMILIES: dict[str, tuple[Method, ...]] = {
    "bsp": (BACKUP, *ANY_SIZE),
    "asp": ASYNCHRONOUS,
    "allreduce": (DDP, BACKUP_TENTH, LB_BSP, ND, ND_OWN, PARTIAL, AUTO),
}
"""Methods for jobs with other patterns than the paper's, by mode."""
WORST = 0.8
"""The intensity of Figures 10 and 11."""


def always(seed: int, scenario: Scenario) -> Scenario:
    """Return the same scenario for every seed."""
    del seed
    return scenario


def _fixed(
    scenario: Scenario, methods: tuple[Method, ...], *, trails: tuple[str, ...] = ()
) -> Experiment:
    return Experiment(draw=partial(always, scenario=scenario), methods=methods, trails=trails)


def _paper(
    mode: str, intensities: tuple[float, ...], methods: tuple[Method, ...]
) -> list[Experiment]:
    kinds = (worker_stragglers, server_straggler)
    return [
        _fixed(kind(si, mode), methods, trails=OVER_TIME if si == WORST else ())
        for kind in kinds
        for si in intensities
    ]


def _restarts() -> list[Experiment]:
    killings = [partial(killed, every_min) for every_min in (None, *CHECKPOINTS_MIN)]
    return [
        _fixed(undisturbed(), (BSP,)),
        *(Experiment(draw=draw, methods=(BSP,)) for draw in killings),
    ]


def _dedicated() -> list[Experiment]:
    models = {"ResNet-101": RESNET_REDUCE, "MobileNet": MOBILENET_REDUCE}
    return [_fixed(dedicated(*one), (DDP, LB_BSP, DD, AUTO)) for one in models.items()]


def families_preset(
    modes: Sequence[str] = ("bsp",),
    sizes: Sequence[int] = (WORKERS,),
    chosen: Sequence[str] = (),
) -> Preset:
    """Families of patterns, on the seeds that solutions are judged on.

    Args:
        modes: of the jobs.
        sizes: their numbers of workers.
        chosen: names of families; none: all that a mode can have.

    Raises:
        ConfigError: there is no such family or mode, a chosen family is of no job, or a job is too
            small.
    """
    for name in chosen:
        if name not in families.FAMILIES:
            raise ConfigError(f"no family {name!r}; there are {', '.join(families.FAMILIES)}")
    for mode in modes:
        if mode not in OF_FAMILIES:
            raise ConfigError(f"no mode {mode!r}; families have {', '.join(OF_FAMILIES)}")
    if min(sizes) < 2:
        raise ConfigError(
            f"--workers {min(sizes)}: a straggler is slower than others; give 2 workers or more"
        )
    experiments = [
        Experiment(
            draw=partial(families.draw, family, mode, workers),
            # Six backup workers are for jobs of twenty.
            methods=tuple(m for m in OF_FAMILIES[mode] if workers == WORKERS or m != BACKUP),
        )
        for mode in modes
        for workers in sizes
        for family in families.names(mode)
        if not chosen or family in chosen
    ]
    if not experiments:
        raise ConfigError(
            f"with all-reduce there are no servers, and so no family {', '.join(chosen)}; "
            "choose another, or mode bsp or asp"
        )
    return Preset(
        name="families",
        about="families of patterns, on the seeds that solutions are judged on "
        "(--mode, --workers, --family)",
        experiments=tuple(experiments),
        repeat=20,
        first_seed=FIRST_EVALUATION_SEED,
    )


def presets(data: Path | None = None) -> dict[str, Preset]:
    """Return all presets; ``data``: where the traces of ``pai`` are."""
    every = [*_of_the_paper(), families_preset(), *_in_production()]
    if data is not None:
        every.append(_pai(data))
    return {preset.name: preset for preset in every}


def _of_the_paper() -> list[Preset]:
    """Section VII-B to VII-E: twenty workers and eight servers, and a few others."""
    table = _paper("bsp", INTENSITIES, SYNCHRONOUS)
    asp = _paper("asp", (WORST,), ASYNCHRONOUS)
    return [
        Preset(
            name="paper",
            about="all of the paper's: every method in every row, BSP and ASP, DD, restarts",
            experiments=(*table, *asp, *_dedicated(), *_restarts()),
        ),
        Preset(
            name="table3",
            about="Table III: all methods in BSP at four straggler intensities",
            experiments=tuple(table),
            repeat=3,
        ),
        Preset(
            name="fig10",
            about="Figure 10: all methods in BSP at intensity 0.8",
            experiments=tuple(_paper("bsp", (WORST,), SYNCHRONOUS)),
            repeat=5,
        ),
        Preset(
            name="fig11",
            about="Figure 11: all methods in ASP at intensity 0.8",
            experiments=tuple(asp),
            repeat=5,
        ),
        Preset(
            name="ssp",
            about="the same in SSP with a staleness of 3",
            experiments=tuple(_paper("ssp", (WORST,), BOUNDED)),
        ),
        Preset(
            name="dd",
            about="Figure 15: four V100 and four P100 in all-reduce",
            experiments=tuple(_dedicated()),
        ),
        Preset(
            name="fig17",
            about="Figure 17: what the restart of a worker costs",
            experiments=tuple(_restarts()),
            repeat=5,
        ),
        Preset(
            name="fig18",
            about="Figure 18: what managing jobs of 8 to 90 workers takes",
            experiments=tuple(_fixed(managed(*size), (ND, AUTO)) for size in FIG18_SIZES),
        ),
    ]


def _in_production() -> list[Preset]:
    """Section VII-F, and one job that is larger than any of it."""
    return [
        Preset(
            name="fleet",
            about="section VII-F: all jobs of an A/B test; a seed is a job",
            experiments=tuple(
                Experiment(draw=partial(production.fleet, mode), methods=methods)
                for mode, methods in (
                    ("bsp", ANY_SIZE),
                    ("asp", (ASP, ASP_DDS, ND, ND_OWN, AUTO)),
                )
            ),
            repeat=30,
            notes=(f"Assumed: {production.STRAGGLING:.0%} of the jobs have stragglers.",),
        ),
        Preset(
            name="homepage",
            about="section VII-F: 230 workers and 50 servers, 27.8 h under BSP",
            experiments=(_fixed(production.homepage("bsp"), (BSP, ND, AUTO)),),
            notes=(
                f"Assumed: {production.HOMEPAGE_STEPS:,} steps and two persistent stragglers; "
                "their slowdown is fitted to 27.8 h under BSP.",
            ),
        ),
        Preset(
            name="large",
            about="1,000 workers and 200 servers: how fast the simulator is",
            experiments=(_fixed(large(), (BSP, AUTO)),),
        ),
    ]


def _pai(data: Path) -> Preset:
    return Preset(
        name="pai",
        about="the measured workers of four production jobs (--data)",
        experiments=tuple(
            Experiment(
                draw=partial(pai.draw, data, job, "bsp"),
                methods=ANY_SIZE,
            )
            for job in pai.JOBS
        ),
        repeat=20,
        first_seed=FIRST_EVALUATION_SEED,
    )


def preset_of(name: str, data: Path | None = None) -> Preset:
    """A preset by name.

    Raises:
        ConfigError: there is none, or it needs data that is not there.
    """
    known = presets(data)
    if name == "pai":
        if data is None:
            raise ConfigError(
                "preset pai reads measured batch times: --data names the directory with the files "
                "job_*_norm.csv.gz of github.com/alibaba/clusterdata"
            )
        for job in pai.JOBS:
            pai.read(pai.file_of(data, job))
    if name not in known:
        raise ConfigError(f"no preset {name!r}; there are {', '.join([*known, 'pai'])}")
    return known[name]
