"""The second family: mean and covariance in bases of kernel functions."""
