"""A click log with a known answer: the planted model behind ``paceline data make-ctr``.

Owns the generator's mathematics and nothing else: no files, no torch. Rows look like Criteo's,
13 counts and 26 categorical ids; the label is drawn from a factorisation machine, so the best AUC
that any model can reach (the Bayes AUC) is known exactly.

Block ``b`` is a pure function of (settings, ``b``): blocks can be made in any order, by anyone, in
constant memory. Planted weights are hashes of (seed, field, id), so vocabularies cost no memory.
"""

from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.base.errors import ConfigError

NUM_NUMERIC = 13
NUM_CATEGORICAL = 26
BLOCK_ROWS = 65_536
RANK = 3
"""Rank of the planted pairwise part: one 64-bit hash holds a weight and three latent components."""

CRITEO_LIKE = (
    *(1_000, 400, 4_000, 3_000, 150, 12, 2_000, 300, 3),
    *(2_000, 3_000, 4_000, 2_500, 24, 2_000, 4_000, 10, 2_000),
    *(1_500, 4, 4_000, 12, 15, 3_000, 60, 2_000),
)
"""Default vocabularies: the mix of Criteo's fields, large ones cut to what 10^5 rows can teach."""

# Chosen so that the Bayes AUC is near 0.80 and a plain model comes within 0.01 of it on a few
# hundred thousand rows: weights that few rows tell of, and interactions of rare ids, would keep
# every model off the ceiling and turn the known answer into one that nobody can check.
_LOGIT_STD = 1.36
_PAIRWISE_SHARE = 0.08
_HEAD_IDS = 10.0
_LATENT_DECAY = 0.5
_GRID = 4096
_LOGIT_LIMIT = 12
_PILOT, _ROWS = 1, 0
_COUNT_LOG_MEAN = 1.6

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]


class CtrSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of which a generated click log is a pure function.

    Raises:
        ConfigError: a value is out of its range.
    """

    seed: int = 0
    vocab: tuple[int, ...] = CRITEO_LIKE
    """Ids per categorical field."""
    skew: float = 1.3
    """Zipf exponent: id k of a field occurs in proportion to about (k + 1) ** -skew."""
    positive_rate: float = 0.23

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError(f"seed: got {self.seed}, expected 0 or more")
        if len(self.vocab) != NUM_CATEGORICAL or min(self.vocab) < 1 or max(self.vocab) > 2**32:
            raise ConfigError(
                f"vocab: got {list(self.vocab)}, expected {NUM_CATEGORICAL} numbers of ids "
                f"between 1 and 2**32 (one per field C1..C{NUM_CATEGORICAL})"
            )
        if not 0.0 <= self.skew <= 4.0:
            raise ConfigError(f"skew: got {self.skew}, expected a Zipf exponent from 0 to 4")
        if not 0.0 < self.positive_rate < 1.0:
            raise ConfigError(f"positive rate: got {self.positive_rate}, expected between 0 and 1")


class Block(NamedTuple):
    """Rows of a click log, column-major; F columns, R rows."""

    label: NDArray[np.int8]
    """(R,)"""
    numeric: Floats
    """(F, R) counts (whole numbers) of I1..I13."""
    ids: Ints
    """(F, R) of C1..C26."""
    logit_bin: Ints
    """(R,) index into `logit_grid` of the true logit, from which the label was drawn."""


class _Scale(NamedTuple):
    """Standardises the two raw parts and sets spread and positive rate of the logit."""

    first_mean: float
    first_std: float
    pair_mean: float
    pair_std: float
    intercept: float


def logit_grid() -> Doubles:
    """The values a true logit can take; being few, exact AUCs need only counts per value."""
    half = _GRID * _LOGIT_LIMIT
    return np.arange(-half, half + 1) / _GRID


class PlantedClicks:
    """The generator: `block` makes any part of an endless log."""

    def __init__(self, settings: CtrSettings) -> None:
        self.settings = settings
        self._numeric_effects_FE = _effects(
            np.arange(NUM_NUMERIC, dtype=np.uint64), field=NUM_CATEGORICAL, seed=settings.seed
        )

    def block(self, index: int, num_rows: int = BLOCK_ROWS) -> Block:
        """Return the first ``num_rows`` rows of block ``index``.

        A block's rows differ for another ``num_rows``: only the last block of a log is short.
        """
        rng = np.random.default_rng([self.settings.seed, _ROWS, index])
        numeric_FR, ids_FR, first_R, pair_R = self._draw(rng, num_rows)
        bin_R = _bins(_logit(first_R, pair_R, self._scale))
        chance_R = _sigmoid(logit_grid())[bin_R]
        label_R = (rng.random(num_rows) < chance_R).astype(np.int8)
        return Block(label_R, numeric_FR, ids_FR, bin_R)

    @cached_property
    def _scale(self) -> _Scale:
        """Measure the raw logit on a block of its own stream, so that every seed is as hard."""
        rng = np.random.default_rng([self.settings.seed, _PILOT])
        _, _, first_R, pair_R = self._draw(rng, BLOCK_ROWS)
        # A vocabulary of single ids leaves a part constant: then it stays 0, not 0/0.
        scale = _Scale(
            float(first_R.mean()),
            float(first_R.std()) or 1.0,
            float(pair_R.mean()),
            float(pair_R.std()) or 1.0,
            0.0,
        )
        logit_R = _logit(first_R, pair_R, scale)
        return scale._replace(intercept=_intercept(logit_R, self.settings.positive_rate))

    def _draw(self, rng: np.random.Generator, num_rows: int) -> tuple[Floats, Ints, Floats, Floats]:
        settings = self.settings
        z_FR = rng.standard_normal((NUM_NUMERIC, num_rows), dtype=np.float32)
        numeric_FR = np.floor(np.exp(z_FR + 1.5))
        x_FR = np.log1p(numeric_FR) - np.float32(_COUNT_LOG_MEAN)
        # sum_E and square_E: column 0 the first-order part, 1..RANK the latent vectors' sums.
        sum_RE = x_FR.T @ self._numeric_effects_FE
        square_RE = (x_FR * x_FR).T @ (self._numeric_effects_FE**2)
        ids_FR = np.empty((NUM_CATEGORICAL, num_rows), dtype=np.int64)
        for field, size in enumerate(settings.vocab):
            ids_R = zipf_ids(rng.random(num_rows), size, settings.skew)
            effects_RE = _effects(ids_R.astype(np.uint64), field=field, seed=settings.seed)
            effects_RE *= _head_weight(ids_R)[:, None]
            effects_RE[:, 1:] *= np.float32(_LATENT_DECAY**field)
            sum_RE += effects_RE
            square_RE += effects_RE * effects_RE
            ids_FR[field] = ids_R
        pair_R = 0.5 * (sum_RE[:, 1:] ** 2 - square_RE[:, 1:]).sum(axis=1)
        return numeric_FR, ids_FR, sum_RE[:, 0], pair_R


class BayesCount:
    """Counts labels per true logit; from it the exact AUC of the truth, in constant memory."""

    def __init__(self) -> None:
        self._chance_K = _sigmoid(logit_grid())
        self._positives_K = np.zeros(len(self._chance_K), dtype=np.int64)
        self._negatives_K = np.zeros(len(self._chance_K), dtype=np.int64)

    def add(self, logit_bin_R: Ints, label_R: NDArray[np.int8]) -> None:
        """Count these rows."""
        size = len(self._chance_K)
        positives_K = np.bincount(logit_bin_R[label_R == 1], minlength=size)
        self._positives_K += positives_K
        self._negatives_K += np.bincount(logit_bin_R, minlength=size) - positives_K

    @property
    def num_rows(self) -> int:
        """Rows counted so far."""
        return int(self._positives_K.sum() + self._negatives_K.sum())

    @property
    def num_positives(self) -> int:
        """Rows with label 1 so far."""
        return int(self._positives_K.sum())

    def sample_auc(self) -> float | None:
        """AUC of the true probability against the labels drawn; None where a class is empty."""
        return auc_from_counts(self._positives_K, self._negatives_K)

    def expected_auc(self) -> float | None:
        """Return the same AUC in expectation over labels, from the probabilities alone.

        A ratio of expectations, and each row is paired with itself too: off by O(1/rows).
        """
        rows_K = self._positives_K + self._negatives_K
        return auc_from_counts(rows_K * self._chance_K, rows_K * (1.0 - self._chance_K))


def auc_from_counts(
    positives_K: NDArray[np.generic], negatives_K: NDArray[np.generic]
) -> float | None:
    """Area under the ROC curve of K ascending scores, from each one's (expected) class counts."""
    pos_K, neg_K = positives_K.astype(np.float64), negatives_K.astype(np.float64)
    pairs = pos_K.sum() * neg_K.sum()
    if pairs == 0.0:
        return None
    return float((pos_K * (np.cumsum(neg_K) - 0.5 * neg_K)).sum() / pairs)


def zipf_ids(uniform_R: Doubles, size: int, skew: float) -> Ints:
    """Turn uniforms in [0, 1) into ids in [0, size) with frequency about (id + 1) ** -skew.

    The inverse of the bounded Pareto law, rounded down: id k has the mass of [k+1, k+2). It needs
    no table, so ``size`` is free.
    """
    end = float(size + 1)
    if abs(skew - 1.0) < 1e-9:
        x_R = end**uniform_R
    else:
        power = 1.0 - skew
        x_R = (1.0 + uniform_R * (end**power - 1.0)) ** (1.0 / power)
    ids_R: Ints = np.minimum(x_R.astype(np.int64), size) - 1
    return ids_R


def _head_weight(ids_R: Ints) -> Floats:
    """Let an id's planted weights shrink with its rarity."""
    weight_R: Floats = 1.0 / (1.0 + ids_R.astype(np.float32) / np.float32(_HEAD_IDS))
    return weight_R


def _effects(ids_R: Hashes, *, field: int, seed: int) -> Floats:
    """Planted (R, 1 + RANK) weights of unit variance: the weight, then the latent vector."""
    origin = _splitmix64(np.array([(seed << 8 | field) % 2**64], dtype=np.uint64))
    lanes_RE = _splitmix64(ids_R + origin).astype("<u8").view("<u2").reshape(-1, 1 + RANK)
    return lanes_RE.astype(np.float32) * np.float32(12**0.5 / 65_536) - np.float32(3**0.5)


def _splitmix64(x: Hashes) -> Hashes:
    """Reference: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _logit(first_R: Floats, pair_R: Floats, scale: _Scale) -> Doubles:
    first = (first_R.astype(np.float64) - scale.first_mean) / scale.first_std
    pair = (pair_R.astype(np.float64) - scale.pair_mean) / scale.pair_std
    mixed = (1.0 - _PAIRWISE_SHARE) ** 0.5 * first + _PAIRWISE_SHARE**0.5 * pair
    logit_R: Doubles = _LOGIT_STD * mixed + scale.intercept
    return logit_R


def _bins(logit_R: Doubles) -> Ints:
    clipped_R = np.clip(logit_R, -_LOGIT_LIMIT, _LOGIT_LIMIT)
    return np.rint(clipped_R * _GRID).astype(np.int64) + _GRID * _LOGIT_LIMIT


def _intercept(logit_R: Doubles, positive_rate: float) -> float:
    """Bisect for the shift that makes the mean probability ``positive_rate``."""
    low, high = -20.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        too_low = _sigmoid(logit_R + middle).mean() < positive_rate
        low, high = (middle, high) if too_low else (low, middle)
    return (low + high) / 2


def _sigmoid(x: Doubles) -> Doubles:
    result: Doubles = 1.0 / (1.0 + np.exp(-x))
    return result
