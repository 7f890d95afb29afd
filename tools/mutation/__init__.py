"""`make mutate`: does the test suite notice small mistakes in the shipped code?"""
