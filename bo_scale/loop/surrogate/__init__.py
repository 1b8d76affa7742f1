"""Models of a loop: built, fitted, conditioned, saved."""
