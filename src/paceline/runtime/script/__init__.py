"""What a script calls: the job, its loops, and the port to what holds the model."""
