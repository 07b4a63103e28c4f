"""How presence counts and sums are noised: mechanisms, their choice and their calibration."""
