"""The problem of a search: space, constraints, outcomes."""
