"""What a member holds (modules, optimizers and what goes with them), named, copied and loaded."""
