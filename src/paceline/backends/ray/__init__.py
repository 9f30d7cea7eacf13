"""Nodes on a Ray cluster: Ray finds the places, our own agents do the rest.

``backend`` is what the master has; ``gateway`` is a process of the job that is connected to Ray;
``launcher`` is an actor on each place. None of the job's messages passes through Ray.
"""
