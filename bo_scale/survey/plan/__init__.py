"""Plans: what was asked for, and what is proposed."""
