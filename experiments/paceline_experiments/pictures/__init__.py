"""The pictures of the README: made from measured numbers, and from a recorded job."""
