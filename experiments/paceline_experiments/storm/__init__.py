"""A storm: a job on four machines of namespaces, to which something happens every half minute."""
