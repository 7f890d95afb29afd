"""A live page for runs: a separate read-only server that reads the files of run folders."""
