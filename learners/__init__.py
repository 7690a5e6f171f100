"""Values in, values out: networks, the Mach learner, optimisers, exchange rules, options.

Nothing here knows Ray, files, the clock or the environment; whatever a rule needs of them is an argument.
May be touched from outside: every module; names with a leading underscore are private.
"""
