"""WISKI: grids, classification, online learning."""
