"""Groups of processes: how they meet and what they tell each other."""
