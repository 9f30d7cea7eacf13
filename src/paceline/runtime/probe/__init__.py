"""What a script that trains on its own does: its steps and collective calls, seen from below."""
