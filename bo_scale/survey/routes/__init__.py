"""Distances and routes."""
