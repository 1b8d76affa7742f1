"""Optimisers that are independent of models."""
