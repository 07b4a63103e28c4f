"""Privacy loss: profiles, calibrations and conversions. Pure functions, each citing its theorem."""
