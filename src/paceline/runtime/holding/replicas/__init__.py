"""Strategy allreduce: every worker holds the model; gradients are averaged among them."""
