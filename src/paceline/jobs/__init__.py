"""A job as seen from outside its processes: its spec, start, files, facts and outcome."""
