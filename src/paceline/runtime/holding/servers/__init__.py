"""Parameter servers and their client."""
