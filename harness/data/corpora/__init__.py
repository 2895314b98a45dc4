"""Parallel corpora: their files, what builds them, and what there is. No torch."""
