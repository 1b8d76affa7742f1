"""Optimisers that know no model."""
