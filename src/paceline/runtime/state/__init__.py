"""What a script trains (modules, optimizers and what goes with them), named, copied and loaded."""
