"""Noise and thresholds: pure mathematics on numpy arrays; no SQL, no DuckDB."""
