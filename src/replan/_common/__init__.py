"""What all parts of replan share; nobody else should import it."""
