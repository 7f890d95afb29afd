"""Keeping the rows of a buffer: its state, and folders of saved rows."""
