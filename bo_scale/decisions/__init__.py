"""From a posterior to the points to evaluate next."""
