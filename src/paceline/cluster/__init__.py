"""The scheduler of a cluster: one process that starts jobs on the devices that there are."""
