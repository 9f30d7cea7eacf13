"""Studies on fail-slow events: the planner's cost, and published traces."""
