"""Nodes and their lives: who belongs to the job, silence, exits, hangs, rounds."""
