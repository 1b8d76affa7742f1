"""The history of a loop: events, observations, pending points."""
