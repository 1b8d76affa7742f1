"""Ways to fit hyperparameters."""
