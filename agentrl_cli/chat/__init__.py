"""A conversation with a policy: one problem at a time, through the loop that trains it."""
