"""The Transformer whose residual connections a scheme decides. Torch only."""
