"""Runtime of a training process. The only package that imports torch."""
