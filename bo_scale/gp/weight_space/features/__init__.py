"""Feature maps φ, one file each."""
