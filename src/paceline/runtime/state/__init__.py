"""Objects that a script trains (modules, optimizers, and so on), named, copied and loaded."""
