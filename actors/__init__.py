"""Thin Ray shells around `learners`: they receive, ask the rules what to do, and perform it.

Here live the actors (learner, recorder), the transport between them and the reading of data from disk.
May be touched from outside: the module-level actor classes, `data.load` and the message types they take.
"""
