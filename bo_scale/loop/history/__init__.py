"""What happened: events, observations, points under way."""
