"""Basics that every process shares: ids, samples, errors, paths. Imports nothing of paceline."""
