"""Training with paceline beside plain torch: equal, or refused by name."""
