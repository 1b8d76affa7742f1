"""Choice of the places to measure next: objectives and designs."""
