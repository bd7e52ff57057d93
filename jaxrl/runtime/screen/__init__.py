"""What a terminal shows: progress, tables."""
