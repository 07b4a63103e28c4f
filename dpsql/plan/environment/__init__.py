"""The policy and the schemas as the planner reads them."""
