"""Features: each is one folder that the core does not name."""
