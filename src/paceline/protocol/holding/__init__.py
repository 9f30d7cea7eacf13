"""Who holds the state of training: the part of each holder that decides."""
