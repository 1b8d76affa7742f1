"""Models inside Ax."""
