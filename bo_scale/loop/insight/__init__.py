"""What a loop has learned: predictions, errors of predictions, suspicious observations, important parameters."""
