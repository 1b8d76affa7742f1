"""Trials as processes on this machine or jobs of Slurm."""
