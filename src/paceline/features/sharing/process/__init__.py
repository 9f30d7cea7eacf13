"""A training process that shares a device: it is held at gates, or says when it is idle."""
