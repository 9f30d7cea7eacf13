"""Tests on a real Ray cluster; `tests/integration/test_ray.py` runs them in a network of their own."""
