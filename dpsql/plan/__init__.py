"""From a SELECT to a private query: which frames can answer it, what is measured on them, and what is shown."""
