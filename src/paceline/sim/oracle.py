"""The former name of `paceline.sim.clairvoyant`, for scripts outside this project."""

from paceline.sim.clairvoyant import clairvoyant_s as oracle_s

__all__ = ["oracle_s"]
