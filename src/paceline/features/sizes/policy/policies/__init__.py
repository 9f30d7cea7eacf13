"""Resource policies, each by a name of the registry."""
