"""Methods to fit hyperparameters."""
