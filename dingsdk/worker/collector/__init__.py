"""Collectors step envs with a policy and return train samples."""
