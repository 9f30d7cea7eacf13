"""The papers' experiments, simulated and with real jobs, and the data they use."""
