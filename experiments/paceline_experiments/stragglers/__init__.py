"""Experiments on stragglers, run and shown: the same for simulated and for real jobs."""
