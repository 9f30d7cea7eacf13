"""Nodes on a Ray cluster: Ray finds the places, our own agents do the rest.

``backend`` is what the master has; ``gateway`` is a process of the job that is connected to Ray;
``launcher`` is an actor on each place. None of the job's messages passes through Ray.
"""

from paceline.base.backends import BackendKind

BACKEND = BackendKind(
    name="ray",
    about="actors of a Ray cluster",
    opened="paceline.backends.ray.backend:open_backend",
    prepared="paceline.backends.ray.backend:prepare",
    keys=("ray_address", "workers.gpus", "servers.gpus"),
    needs="ray",
    remedy="pip install 'paceline[ray]'",
    verbs="paceline.backends.ray.verbs:add_to",
)
