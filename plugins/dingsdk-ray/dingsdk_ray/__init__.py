"""The ray transport; see the README."""
