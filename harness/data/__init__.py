"""Corpora and synthetic tasks as arrays of token numbers, and what can be had without depth."""
