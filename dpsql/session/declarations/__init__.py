"""The curator's declarations, one module a subject; ``dpsql.session.declare`` is the door to them."""
