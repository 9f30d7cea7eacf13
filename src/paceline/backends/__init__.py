"""Places where nodes run."""
