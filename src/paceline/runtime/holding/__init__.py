"""Strategies: one folder per answer to the question who holds the state of training."""
