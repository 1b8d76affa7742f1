"""The BoTorch models: shells around the posteriors of this package."""
