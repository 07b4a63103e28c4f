"""Private GROUP BY on data frames: pandas, polars and Arrow."""
