"""Measurements from delimited text."""
