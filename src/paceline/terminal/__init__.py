"""Common parts of all commands, of the core and of features: words, options, and printing."""
