"""Parallel runs of real processes under faults, with a check for lost samples."""
