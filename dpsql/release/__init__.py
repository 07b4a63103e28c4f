"""From exact groups to stored, noisy points and the values that are shown."""
