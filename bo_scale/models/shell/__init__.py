"""The BoTorch shell that all models share."""
