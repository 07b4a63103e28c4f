"""Text formats that an answer can be written in, beside the box on the screen."""

JSON_FORMATS = ("json", "jsonl")
"""A document of a whole answer, and its rows one a line."""
TEXT_FORMATS = ("csv", *JSON_FORMATS, "markdown")
