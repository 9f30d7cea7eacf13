"""Stragglers: what is seen of a job, what can be done about them, and the solutions that decide."""
