"""Aggregate calls: which bounded statistics answer each."""
