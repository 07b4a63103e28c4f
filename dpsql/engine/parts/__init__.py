"""Tables in many parts: each part is a database file with whole units."""
