"""Texts that are printed of an answer: its receipt, the words of its notes, its screen and its layout."""
