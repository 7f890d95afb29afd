"""More algorithms for dingsdk: each module is one policy, written with public names only."""
