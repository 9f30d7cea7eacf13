"""Samples: the ledger, the plans of how they are divided, and what a worker is granted."""
