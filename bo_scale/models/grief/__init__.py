"""GP-GRIEF: a GP on eigenfunctions, and its fully Bayesian version."""
