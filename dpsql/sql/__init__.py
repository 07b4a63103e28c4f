"""From text to a SELECT whose names, rows and sources are known; or to every reason why it has no private form."""
