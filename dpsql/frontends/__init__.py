"""Thin surfaces over Session."""
