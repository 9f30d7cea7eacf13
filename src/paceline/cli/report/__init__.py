"""What became of a job: facts from its directory, as text and as one self-contained page."""
