"""A transport for the workers of one host, over a Unix socket."""
