"""What a query reads, as one relation with a unit column: tables, links, joins, subqueries, views."""
