"""Function-space models: mean and covariance in bases of kernel functions."""
