"""Sinks: where the curves of a job go in addition to its own file; each is a file here."""
