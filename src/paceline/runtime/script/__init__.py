"""The job as a script calls it: its loops, and the port to the holder of the model."""
