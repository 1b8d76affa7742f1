"""What L-BFGS on the evidence of all the data does not cover: starts, and stages over some of the parameters."""
