"""What runs in a training process. The only package that imports torch."""
