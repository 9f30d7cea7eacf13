"""Members of one group: their collectives, the steps they do together, how it is formed anew."""
