"""Where to measure next: objectives and designs."""
