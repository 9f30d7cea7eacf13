"""Studies on fail-slow events: how well they are found, the planner's cost, published traces."""
