"""Choose the points to evaluate next from a posterior."""
