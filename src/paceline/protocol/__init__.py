"""Every pure machine of a job, by idea: facts in, acts out; no clock, no I/O, no torch."""
