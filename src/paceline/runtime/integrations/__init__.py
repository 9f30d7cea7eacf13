"""Training loops of other libraries, as members of a job of strategy allreduce."""
