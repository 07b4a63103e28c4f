"""What a query may ask for beside groups and aggregates: buckets, grouping sets, other group, AUTO."""
