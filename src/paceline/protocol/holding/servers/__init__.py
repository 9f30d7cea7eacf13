"""State on parameter servers: the parts of master, server and worker."""
