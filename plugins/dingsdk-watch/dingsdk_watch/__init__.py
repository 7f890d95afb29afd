"""A live page for runs: a read-only server of its own, which reads the files of run folders."""
