"""Tests on a real Ray cluster; `tests/ray/test_ray.py` runs them in a network of their own."""
