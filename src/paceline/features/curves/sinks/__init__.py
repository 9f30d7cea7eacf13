"""Where the curves of a job go in addition to its own file; a sink is a file here."""
