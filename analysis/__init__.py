"""Reads run folders, never live actors: records in, tables and pictures out.

table         records as arrays
views         which figures make which picture
instruments   pictures that are measured, of what is handed in as a `learners.watching.Probe`
pictures      pictures as values, and the one way to draw and tabulate them
report        all of it: `analyse`, which is what may be touched from outside
"""
