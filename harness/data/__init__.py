"""Corpora and synthetic tasks as arrays of token numbers, and the losses of predictors that learn no depth."""
