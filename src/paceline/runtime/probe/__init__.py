"""Steps of a script that trains on its own, seen from below."""
