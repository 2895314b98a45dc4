"""Parallel text as a task: pieces of words, batches of a token budget, scores of translations."""
