"""Strategy of a script that was started plainly: torch trains the model, in this process."""
