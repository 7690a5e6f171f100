"""Neural mechanics: charges that symmetries of the loss conserve, how an update rule breaks them, and what follows.

symmetries  which charges a network has, found from what its layers do, and why others have none
charges     charges and scalar products of weights, gradients and steps, summed over each unit's synapses
exact       what an update rule makes of every charge, exactly, one step at a time
curves      what the paper's differential equations make of them
sums        the sums of `charges` inside a compiled step, in TensorFlow
inside      what a training step measures of itself
alarm       from a law that does not hold to the likely cause
watch       all of it for one learner: sums of its steps in, figures and alarms out

Kunin, Sagastuy-Brena, Ganguli, Yamins, Tanaka: Neural Mechanics: Symmetry and Broken Conservation Laws in Deep Learning
Dynamics, ICLR 2021. Values in, values out.
"""
