"""Models and predictions of a quantity over an area."""
