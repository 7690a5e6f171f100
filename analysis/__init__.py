"""Reads run folders, never live actors: records in, tables and pictures out."""
