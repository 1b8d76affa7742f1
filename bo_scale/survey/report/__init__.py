"""Reports on surveys: what the model found, how well it predicts, and what plans have gained."""
