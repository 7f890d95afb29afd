"""Collectors: they step envs with a policy and hand out train samples."""
