"""What the commands of the core and of features share: words, options, and how they print."""
