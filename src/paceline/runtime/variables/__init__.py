"""The script's own variables: found in its running frames, taken back, handed over."""
