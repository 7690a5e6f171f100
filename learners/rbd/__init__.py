"""Random bases descent: options and their defaults, a worker and its rounds, coordinates, clocks, exact replicas.

Values in, values out, as everywhere in `learners`; the directions themselves are drawn in `learners.bases`.
"""
