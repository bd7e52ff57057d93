"""Parts of algorithms that plan: tree search, and planners of sequences of continuous actions, with learned models or the
environment itself."""
