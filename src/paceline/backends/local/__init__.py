"""The local backend: nodes are processes of this machine."""
