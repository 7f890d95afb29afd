"""What the prioritized buffer knows of its rows, and its settings."""
