"""The steps of an answer after its plan: exact values, points, shown groups, receipt."""
