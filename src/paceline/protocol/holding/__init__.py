"""Holders of the state of training: the part of each one that decides."""
