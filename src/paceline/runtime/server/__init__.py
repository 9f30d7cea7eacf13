"""The process of a parameter server: its store, tables, kernels and rules."""
