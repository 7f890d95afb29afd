"""Parallel runs of real processes under faults, and whether they lose anything."""
