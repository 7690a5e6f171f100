"""What a worker sends keeps to a budget, whatever its steps take."""

import numpy as np
import pytest

from actors.pace import Pace


def test_what_a_worker_sends_keeps_to_a_budget_through_pauses():
    now = 0.0
    pace = Pace(2000.0, 176, lambda: now)
    chance, sent, begun = np.random.default_rng(1), 0, None
    for i in range(400):
        steps = pace.steps(sent, 10**9)
        now += steps / chance.uniform(300, 1500)
        sent += 176 + (100 if i % 4 == 0 else 0)  # clocks count too
        if i == 200:
            now += 60.0  # a pause
            begun = (now, sent)
    assert begun[1] == pytest.approx(2000.0 * (begun[0] - 60.0), rel=0.1)
    assert sent - begun[1] == pytest.approx(2000.0 * (now - begun[0] + 1.0), rel=0.1)  # a second's worth is made up
    assert pace.steps(sent, 3) <= 3  # the last round is what is left
