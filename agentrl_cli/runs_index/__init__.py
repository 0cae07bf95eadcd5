"""All runs of a folder: listed, pruned, compared."""
