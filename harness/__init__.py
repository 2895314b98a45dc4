"""Reproduces DeepNet (arXiv:2203.00555) and puts every residual scheme through the same test."""
