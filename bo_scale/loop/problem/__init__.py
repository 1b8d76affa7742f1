"""What is searched and what is wanted: space, constraints, outcomes."""
