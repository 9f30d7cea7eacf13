"""The process that exports: it knows torch, which the command line does not."""
