"""The master process: ledger, membership, epochs and cuts."""
