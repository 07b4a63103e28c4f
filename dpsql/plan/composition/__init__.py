"""A text taken apart into private queries, public values, and one outer statement over their answers."""
