"""The bounded aggregation: SQL in which one unit moves every number by no more than the plan says."""
