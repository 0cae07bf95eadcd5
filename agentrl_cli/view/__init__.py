"""Trajectories for people to read."""
