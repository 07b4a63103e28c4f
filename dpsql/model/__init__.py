"""The nouns of a private query: frame, statistic, keys, options, environment, refusals; and their hashes."""
