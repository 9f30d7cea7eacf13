"""The solutions that come with paceline; ``registry.py`` beside this folder names them."""
