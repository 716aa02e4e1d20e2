"""What all parts of replan share; for internal use only."""
