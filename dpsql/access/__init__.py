"""Access for many analysts at once, over whatever line they ask: tokens, turns, limits, and when answers are shown."""
