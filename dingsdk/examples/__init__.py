"""The shipped examples, and the code of those that need some."""
