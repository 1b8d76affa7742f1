"""Gaussian process mathematics: torch only, free of BoTorch, GPyTorch and Ax."""
