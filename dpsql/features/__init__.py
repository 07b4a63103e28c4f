"""Parts of a query that need more than one frame: how grouping sets, the other group and AUTO are priced and run."""
