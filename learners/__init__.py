"""Values in, values out: networks, the Mach learner, optimisers, exchange rules, options.

`learners.bases` draws random directions, `learners.rbd` descends along them; the modules beside them serve the Mach
learner, or all.

Nothing here knows Ray, files, the clock or the environment; whatever a rule needs of them is an argument.
May be touched from outside: every module; names with a leading underscore are private.
"""
