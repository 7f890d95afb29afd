"""Minari data sets, read and written."""
