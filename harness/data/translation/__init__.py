"""Parallel text as a task: pieces of words, batches of a token budget, and scores of translations."""
