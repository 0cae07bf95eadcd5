"""What a trajectory is paid: `verify` decides right or wrong, `compose` puts the reward together.

What each ending is paid stands in `compose`, the forms of the tool term in `components`, the statuses of a
verdict in `verify`. Verification is exact: a false "right" teaches the model to cheat, so what is not wholly
understood is wrong, and a failure of the verifier itself is never scored.
"""
