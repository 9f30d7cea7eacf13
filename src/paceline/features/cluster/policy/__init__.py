"""Decisions about which job starts on which devices of a cluster, and why."""
