"""The exchange rules as lists of events. No Ray, no clock, no network: `at` is what time there is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learners.exchange import WINDOW, Exchange, Position
from learners.messages import (
    Accuse,
    Answer,
    Arrived,
    Ask,
    Closed,
    Done,
    Embed,
    Embedded,
    Ended,
    Features,
    Got,
    Gradient,
    Leave,
    Opened,
    Ready,
    Rows,
    Send,
    Tick,
    Train,
    Trained,
    Wait,
    Want,
)
from learners.options import Exchange as Limits

B, E, F, STEPS, N = 4, 3, 5, 50, 100
LIMITS = Limits(in_flight=2, patience=1.0, time_limit=10.0, max_staleness=5, queue=3, clip=1.0, pack=1)


def batch(number, size=B):
    return Rows("data", np.arange(number * B, number * B + size, dtype=np.int32) % N)


def machine(children=(), parents=(), limits=LIMITS, **more):
    given = dict(
        name="me",
        incarnation=0,
        children=dict.fromkeys(children, E),
        parents=dict.fromkeys(parents, B),
        embedding=E,
        features=(F, "<f4"),
        data={"data": N},
        batch=batch,
        steps=STEPS,
        limits=limits,
    )
    return Exchange(**{**given, **more})


def embedding(rows=B, value=0.5):
    return np.full((rows, E), value, np.float32)


def answer(ask, sequence=0, version=0, value=0.5, sender="child", incarnation=0):
    return Answer(sender, incarnation, sequence, ask=ask, version=version, embedding=embedding(value=value))


def gradient(sequence=0, version=0, value=0.01, sender="parent", incarnation=0):
    return Gradient(sender, incarnation, sequence, version=version, batch=batch(0), gradient=embedding(value=value))


def ask(sequence=0, sender="parent", incarnation=0, number=0):
    return Ask(sender, incarnation, sequence, batch=batch(number))


def arrived(*messages, at=0.0):
    return [Arrived(message, at) for message in messages]


def only(kind, instructions):
    return [i for i in instructions if isinstance(i, kind)]


def sent(instructions, to="child"):
    return [m for i in only(Send, instructions) if i.to == to for m in i.messages]


def step(exchange, number, gradients=None, at=0.0):
    """The learner reports its step done and is ready for the next."""
    return exchange.handle(Trained(number, gradients or {}, at), Ready(number + 1, at))


# ---------------------------------------------------------------- the good case


def test_requests_leave_before_the_step_and_a_gradient_goes_with_the_next_one():
    exchange = machine(children=["child"])
    first = exchange.handle(Ready(0, 0.0))
    assert [m.batch.numbers[0] for m in sent(first)] == [0, B, 2 * B]  # this step's, and two in flight behind it
    assert isinstance(first[-1], Wait)
    out = exchange.handle(*arrived(answer(0)))
    assert [type(i) for i in out] == [Train] and out[0].answers["child"].ask == 0
    (call,) = only(Send, step(exchange, 0, {"child": embedding(value=0.1)}))
    assert [type(m) for m in call.messages] == [Gradient, Ask]
    assert call.messages[0].version == 0
    assert np.array_equal(call.messages[0].batch.numbers, batch(0).numbers)


def test_never_more_in_flight_than_allowed_and_never_beyond_the_last_step():
    exchange = machine(children=["child"], steps=5)
    asked, out = [], exchange.handle(Ready(0, 0.0))
    for number in range(5):
        asked += [m for m in sent(out) if isinstance(m, Ask)]
        assert len(asked) - number <= LIMITS.in_flight + 1
        out = exchange.handle(*arrived(answer(asked[number].sequence, sequence=number)))
        asked += [m for m in sent(out) if isinstance(m, Ask)]
        assert only(Train, out)
        out = step(exchange, number) if number < 4 else exchange.handle(Trained(4, {}, 0.0))
    asked += [m for m in sent(out) if isinstance(m, Ask)]
    assert [int(m.batch.numbers[0]) for m in asked] == [0, 4, 8, 12, 16]
    assert exchange.version == 5


def test_sequences_to_one_receiver_count_from_zero_without_gap():
    exchange = machine(children=["child"])
    messages = sent(exchange.handle(Ready(0, 0.0)))
    for number in range(6):
        asks = [m for m in messages if isinstance(m, Ask)]
        exchange.handle(*arrived(answer(asks[number].sequence, sequence=number)))
        messages += sent(step(exchange, number, {"child": embedding()}))
    assert [m.sequence for m in messages] == list(range(3 + 2 * 6))


def packing(pack=2, patience=1.0):
    """A learner that has had answers to its first three requests and takes its first step at time 1."""
    exchange = machine(children=["child"], limits=replace_limits(pack=pack, patience=patience))
    exchange.handle(Ready(0, 1.0))
    out = exchange.handle(*arrived(*(answer(n, sequence=n) for n in range(3)), at=1.0))
    assert only(Train, out)
    return exchange


def test_messages_of_short_steps_share_a_call():
    exchange = packing()
    out = step(exchange, 0, {"child": embedding()}, at=1.1)
    assert [type(i) for i in out] == [Train]
    (call, train) = step(exchange, 1, {"child": embedding()}, at=1.2)
    assert [type(m) for m in call.messages] == [Gradient, Ask, Gradient, Ask] and isinstance(train, Train)
    assert [m.sequence for m in call.messages] == [3, 4, 5, 6]


def test_messages_of_long_steps_leave_at_once():
    exchange = packing(patience=0.5)
    (call, _) = step(exchange, 0, {"child": embedding()}, at=1.5)
    assert [type(m) for m in call.messages] == [Gradient, Ask]


def test_nothing_is_held_by_a_learner_that_waits():
    exchange = packing(pack=4)
    step(exchange, 0, {"child": embedding()}, at=1.1)
    step(exchange, 1, {"child": embedding()}, at=1.2)
    out = step(exchange, 2, {"child": embedding()}, at=1.3)
    assert [type(m) for m in sent(out)] == [Gradient, Ask] * 3 and isinstance(out[-1], Wait)


def test_nothing_is_held_after_the_last_step():
    exchange = machine(children=["child"], limits=replace_limits(pack=4), steps=2)
    exchange.handle(Ready(0, 1.0))
    exchange.handle(*arrived(answer(0), answer(1, sequence=1), at=1.0))
    assert not sent(step(exchange, 0, {"child": embedding()}, at=1.1))
    out = exchange.handle(Trained(1, {"child": embedding()}, 1.2), Done(1.2))
    assert [type(m) for m in sent(out)] == [Gradient, Gradient, Ended]


def test_a_request_is_as_old_as_its_leaving():
    exchange = packing()
    step(exchange, 0, at=1.1)
    (call, train) = step(exchange, 1, at=30.0)  # one long step later
    assert [type(m) for m in call.messages] == [Ask, Ask] and isinstance(train, Train)
    exchange.handle(Tick(30.0 + LIMITS.time_limit - 0.1))
    assert exchange.counts["lost"] == 0
    exchange.handle(Tick(30.0 + LIMITS.time_limit))
    assert exchange.counts["lost"] == 2


def test_what_was_held_for_an_incarnation_that_is_over_is_dropped_and_counted():
    exchange = packing()
    step(exchange, 0, {"child": embedding()}, at=1.1)
    exchange.handle(Closed("child", 0, False, 1.15))
    assert exchange.counts["dropped gradients to children"] == 1
    out = exchange.handle(Opened("child", 1, 1.2))
    assert not [m for m in sent(out) if isinstance(m, Gradient)]


def test_waiting_asks_are_served_together_and_before_the_step():
    exchange = machine(parents=["parent", "other"])
    out = exchange.handle(*arrived(ask(0), ask(0, sender="other"), ask(1)), Ready(0, 0.0))
    assert [type(i) for i in out] == [Embed, Train]
    assert len(out[0].asks) == 3
    back = exchange.handle(Embedded(out[0].asks, (embedding(),) * 3, 7, 0.0))
    assert [(i.to, len(i.messages)) for i in only(Send, back)] == [("parent", 2), ("other", 1)]
    assert all(m.version == 7 for m in sent(back, "parent"))
    assert [m.ask for m in sent(back, "parent")] == [0, 1]


def test_one_gradient_per_parent_and_step_oldest_first():
    exchange = machine(parents=["parent", "other"])
    messages = arrived(gradient(0, value=0.1), gradient(1, value=0.2), gradient(0, value=0.25, sender="other"))
    (train,) = only(Train, exchange.handle(*messages, Ready(0, 0.0)))
    assert [float(g.gradient[0, 0]) for g in train.gradients] == pytest.approx([0.1, 0.25])
    (train,) = only(Train, step(exchange, 0))
    assert [float(g.gradient[0, 0]) for g in train.gradients] == pytest.approx([0.2])


def test_without_children_a_step_is_due_at_once():
    assert [type(i) for i in machine().handle(Ready(0, 0.0))] == [Train]


def test_a_batch_waits_for_all_children_but_not_for_a_silent_one():
    exchange = machine(children=["left", "right"], steps=3)
    exchange.handle(Ready(0, 0.0))
    assert isinstance(exchange.handle(*arrived(answer(0, sender="left")))[-1], Wait)
    (train,) = only(Train, exchange.handle(*arrived(answer(0, sender="right"), at=0.5)))
    assert all(train.answers.values()) and train.batch == 0
    exchange.handle(Trained(0, {}, 0.5), *arrived(answer(1, sequence=1, sender="left"), at=0.6))
    (train,) = only(Train, exchange.handle(Ready(1, 10.0)))  # the right one's time is over
    assert train.answers["left"] is not None and train.answers["right"] is None and train.batch == 1
    assert (exchange.counts["used"], exchange.counts["fallbacks"]) == (2, 0)


# ---------------------------------------------------------------- answers: lost, late, repeated, reordered, poisoned


def test_lost_answer_falls_back_after_patience_then_the_child_is_silent_and_nobody_waits():
    exchange = machine(children=["child"])
    out = exchange.handle(Ready(0, 0.0))
    assert out[-1] == Wait(1.0)
    assert isinstance(exchange.handle(Tick(0.9))[-1], Wait)
    (train,) = only(Train, exchange.handle(Tick(1.0)))
    assert train.answers == {"child": None} and exchange.counts["fallbacks"] == 1
    assert train.batch == 3  # a fresh one: those that were asked about keep their answers
    exchange.handle(Trained(0, {}, 9.0))
    out = exchange.handle(Ready(1, 10.0))  # the time limit has passed: lost, silent
    assert only(Train, out)[0].batch == 0 and exchange.counts["lost"] == 3
    outs = [step(exchange, number, at=10.0) for number in (1, 2, 3)]
    assert [only(Train, o)[0].batch for o in outs] == [1, 2, 5]  # nobody waits for the silent
    assert [len(sent(o)) for o in outs] == [1, 0, 0]  # one probe, of batch 4
    again = step(exchange, 4, at=20.0)
    assert len(sent(again)) == 1 and exchange.counts["lost"] == 4  # and one more when its time is over


def test_silent_child_that_answers_is_used_again():
    exchange = machine(children=["child"])
    exchange.handle(Ready(0, 0.0))
    exchange.handle(Tick(1.0))
    outs = [step(exchange, number, at=10.0) for number in range(4)]
    (probe,) = [m for o in outs for m in sent(o) if m.batch.numbers[0] == 4 * B]
    back = exchange.handle(Trained(4, {}, 10.1), *arrived(answer(probe.sequence), at=10.1))
    assert len(sent(back)) == 2  # two in flight behind the one that came
    (train,) = only(Train, exchange.handle(Ready(5, 10.1)))
    assert train.answers["child"] is not None
    assert step(exchange, 5, at=10.2)[-1] == Wait(11.2)  # it is waited for again


def test_an_answer_after_its_step_is_not_lost():
    """A slow child's answers are used, each with its own batch, in a later step."""
    exchange = machine(children=["child"])
    exchange.handle(Ready(0, 0.0))
    assert only(Train, exchange.handle(Tick(1.0)))[0].batch == 3
    (train,) = only(Train, exchange.handle(Trained(0, {}, 1.1), *arrived(answer(0), at=1.1), Ready(1, 1.2)))
    assert train.batch == 0 and train.answers["child"].ask == 0 and exchange.counts["late"] == 0


def test_late_answer_is_counted_and_not_used():
    exchange = machine(children=["child"])
    exchange.handle(Ready(0, 0.0))
    exchange.handle(Tick(1.0))
    out = exchange.handle(Trained(0, {}, 10.0), *arrived(answer(0, version=3), at=10.0), Tick(10.0), Ready(1, 10.0))
    assert exchange.counts["late"] == 0 and exchange.counts["lost"] == 2
    assert only(Train, out)[0].answers["child"] is not None
    exchange.handle(*arrived(answer(1, sequence=1), at=10.1))
    assert exchange.counts["late"] == 1


def test_repeated_answer_counts_once():
    exchange = machine(children=["child"])
    exchange.handle(Ready(0, 0.0))
    exchange.handle(*arrived(answer(0), answer(0)))
    assert exchange.counts["repeated"] == 1 and exchange.counts["late"] == 0


def test_reordered_answers_reach_their_own_batches():
    exchange = machine(children=["child"])
    exchange.handle(Ready(0, 0.0))
    (first,) = only(Train, exchange.handle(*arrived(answer(1, sequence=0, value=0.2))))
    (second,) = only(
        Train, exchange.handle(*arrived(answer(0, sequence=1, value=0.1)), Trained(0, {}, 0.0), Ready(1, 0.0))
    )
    assert (first.batch, second.batch) == (1, 0)
    values = [float(t.answers["child"].embedding[0, 0]) for t in (first, second)]
    assert values == pytest.approx([0.2, 0.1])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (np.full((B, E), np.nan, np.float32), "not finite"),
        (np.full((B, E), np.inf, np.float32), "not finite"),
        (np.zeros((B, E + 1), np.float32), "wrong shape"),
        (np.zeros((B + 1, E), np.float32), "wrong shape"),
        (np.zeros((B, E), np.float64), "wrong type"),
        (np.zeros(B, np.float32), "wrong shape"),
    ],
)
def test_poisoned_answers_are_refused_and_the_third_accuses(bad, reason):
    exchange = machine(children=["child"], limits=replace_limits(in_flight=8))
    exchange.handle(Ready(0, 0.0))
    accused = []
    for sequence in range(3):
        out = exchange.handle(*arrived(replace(answer(sequence, sequence=sequence), embedding=bad)))
        accused.append(only(Accuse, out))
        assert all(train.answers["child"] is None for train in only(Train, out))
    assert exchange.counts[f"refused {reason}"] == 3
    assert [len(a) for a in accused] == [0, 0, 1]
    assert accused[2][0].sender == "child" and reason in accused[2][0].reason


def replace_limits(**changes):
    return Limits(**{**{name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__}, **changes})


# ---------------------------------------------------------------- asks


def test_lost_ask_leaves_the_child_untouched():
    exchange = machine(parents=["parent"])
    out = exchange.handle(*arrived(ask(1)))  # sequence 0 never comes
    assert len(only(Embed, out)[0].asks) == 1


def test_repeated_ask_is_answered_once():
    exchange = machine(parents=["parent"])
    out = exchange.handle(*arrived(ask(0), ask(0)))
    assert len(only(Embed, out)[0].asks) == 1 and exchange.counts["repeated"] == 1


def test_reordered_asks_name_the_ask_they_answer():
    exchange = machine(parents=["parent"])
    (embed,) = only(Embed, exchange.handle(*arrived(ask(1), ask(0))))
    answers = sent(exchange.handle(Embedded(embed.asks, (embedding(), embedding()), 0, 0.0)), "parent")
    assert [m.ask for m in answers] == [1, 0]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Rows("other", np.arange(B, dtype=np.int32)), "unknown data"),
        (Rows("data", np.array([N], np.int32)), "rows out of range"),
        (Rows("data", np.array([-1], np.int32)), "rows out of range"),
        (Rows("data", np.zeros((0,), np.int32)), "wrong shape"),
        (Rows("data", np.zeros(B, np.float32)), "wrong type"),
        (Features(np.zeros((B, F + 1), np.float32)), "wrong shape"),
        (Rows("data", np.zeros(B + 1, np.int32)), "wrong shape"),
        (Features(np.zeros((B + 1, F), np.float32)), "wrong shape"),
        (Features(np.zeros(B, np.float32)), "wrong shape"),
        (Features(np.zeros((B, F), np.uint8)), "wrong type"),
        (Features(np.full((B, F), np.nan, np.float32)), "not finite"),
    ],
)
def test_poisoned_asks_are_refused_and_the_third_accuses(bad, reason):
    exchange = machine(parents=["parent"])
    out = [exchange.handle(*arrived(replace(ask(s), batch=bad))) for s in range(3)]
    assert not any(only(Embed, o) for o in out)
    assert exchange.counts[f"refused {reason}"] == 3
    assert [len(only(Accuse, o)) for o in out] == [0, 0, 1]


def test_asks_beyond_the_queue_push_out_the_oldest():
    exchange = machine(parents=["parent"])
    (embed,) = only(Embed, exchange.handle(*arrived(*[ask(s) for s in range(5)])))
    assert [a.sequence for a in embed.asks] == [2, 3, 4] and exchange.counts["dropped asks"] == 2


def test_features_by_value_are_taken():
    exchange = machine(parents=["parent"])
    message = replace(ask(0), batch=Features(np.zeros((B, F), np.float32)))
    assert only(Embed, exchange.handle(*arrived(message)))


# ---------------------------------------------------------------- gradients


def test_lost_gradient_changes_nothing_else():
    exchange = machine(parents=["parent"])
    (train,) = only(Train, exchange.handle(Ready(0, 0.0)))
    assert train.gradients == () and exchange.counts["applied"] == 0


def test_repeated_gradient_is_applied_at_most_once():
    exchange = machine(parents=["parent"])
    exchange.handle(*arrived(gradient(0)), Ready(0, 0.0))
    (train,) = only(Train, exchange.handle(*arrived(gradient(0)), Trained(0, {}, 0.0), Ready(1, 0.0)))
    assert train.gradients == () and exchange.counts["repeated"] == 1


def test_late_gradient_is_refused_when_it_would_be_applied_too_stale():
    exchange = machine(parents=["parent"], position=Position(10, 10, ()))
    (train,) = only(Train, exchange.handle(*arrived(gradient(0, version=4)), Ready(10, 0.0)))
    assert train.gradients == () and exchange.counts["refused stale"] == 1
    (train,) = only(Train, exchange.handle(*arrived(gradient(1, version=6)), Trained(10, {}, 0.0), Ready(11, 0.0)))
    assert len(train.gradients) == 1  # exactly at the limit of 5


def test_reordered_gradients_are_each_applied():
    exchange = machine(parents=["parent"])
    (first,) = only(Train, exchange.handle(*arrived(gradient(1, value=0.2), gradient(0, value=0.1)), Ready(0, 0.0)))
    (second,) = only(Train, step(exchange, 0))
    assert [float(t.gradients[0].gradient[0, 0]) for t in (first, second)] == pytest.approx([0.2, 0.1])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gradient": np.full((B, E), np.nan, np.float32)}, "not finite"),
        ({"gradient": np.full((B, E), 1e30, np.float32)}, "not finite"),
        ({"gradient": np.zeros((B - 1, E), np.float32)}, "wrong shape"),
        ({"gradient": np.zeros((B, E), np.float16)}, "wrong type"),
        ({"batch": batch(0, B + 1), "gradient": np.zeros((B + 1, E), np.float32)}, "wrong shape"),
        ({"batch": Rows("other", np.arange(B, dtype=np.int32))}, "unknown data"),
        ({"version": 99}, "version from the future"),
    ],
)
def test_poisoned_gradients_are_refused_and_the_third_accuses(change, reason):
    exchange = machine(parents=["parent"])
    out = [exchange.handle(*arrived(ask(2 * s), replace(gradient(2 * s + 1), **change))) for s in range(3)]
    assert exchange.counts[f"refused {reason}"] == 3
    assert [len(only(Accuse, o)) for o in out] == [0, 0, 1]  # good asks between do not excuse bad gradients
    (train,) = only(Train, exchange.handle(Ready(0, 0.0)))
    assert train.gradients == ()


def test_a_good_gradient_between_clears_the_count():
    exchange = machine(parents=["parent"])
    bad = np.full((B, E), np.nan, np.float32)
    out = []
    for sequence in range(6):
        message = gradient(sequence) if sequence == 2 else replace(gradient(sequence), gradient=bad)
        out += exchange.handle(*arrived(message))
    assert len(only(Accuse, out)) == 1  # sequences 3, 4, 5


def test_long_gradients_are_clipped_and_counted():
    exchange = machine(parents=["parent"])
    (train,) = only(Train, exchange.handle(*arrived(gradient(0, value=2.0)), Ready(0, 0.0)))
    assert np.linalg.norm(train.gradients[0].gradient) == pytest.approx(1.0, rel=1e-5)
    assert exchange.counts["clipped"] == 1


def test_gradients_beyond_the_queue_push_out_the_oldest():
    exchange = machine(parents=["parent"])
    exchange.handle(*arrived(*[gradient(s) for s in range(10)]))
    assert exchange.queued == LIMITS.queue and exchange.counts["dropped gradients"] == 7


def test_gradients_can_be_switched_off():
    exchange = machine(children=["child"], limits=replace_limits(gradients=False))
    exchange.handle(Ready(0, 0.0))
    exchange.handle(*arrived(answer(0)))
    assert not [m for m in sent(step(exchange, 0, {"child": embedding()})) if isinstance(m, Gradient)]


# ---------------------------------------------------------------- ends, deaths, returns


def test_a_finished_learner_answers_refuses_gradients_and_leaves_when_its_parents_have_ended():
    exchange = machine(children=["child"], parents=["parent"])
    out = exchange.handle(Done(0.0))
    assert [type(m) for m in sent(out)] == [Ended] and not only(Leave, out)
    out = exchange.handle(*arrived(ask(0), gradient(1)))
    assert only(Embed, out) and exchange.counts["refused finished"] == 1
    assert only(Leave, exchange.handle(*arrived(Ended("parent", 0, 2))))
    assert not only(Leave, exchange.handle(Tick(1.0)))  # said once


def test_an_ask_that_overtakes_the_end_does_not_keep_the_learner():
    exchange = machine(parents=["parent"])
    exchange.handle(Done(0.0))
    out = exchange.handle(*arrived(Ended("parent", 0, 1), ask(0)))
    assert only(Embed, out)
    assert only(Leave, exchange.handle(Tick(0.1)))


def test_a_parent_that_dies_for_good_frees_its_child_and_one_that_will_return_does_not():
    exchange = machine(parents=["parent"])
    exchange.handle(Done(0.0))
    assert not only(Leave, exchange.handle(Closed("parent", 0, False, 1.0)))
    assert only(Embed, exchange.handle(*arrived(ask(0, incarnation=1))))
    assert only(Leave, exchange.handle(Closed("parent", 1, True, 2.0)))


def test_child_dies_is_closed_and_returns_under_a_new_incarnation():
    exchange = machine(children=["child"])
    exchange.handle(Ready(0, 0.0))
    out = exchange.handle(Closed("child", 0, False, 0.1))
    assert only(Train, out)[0].answers == {"child": None}  # at once: nobody waits for the dead
    for number in range(4):
        assert not sent(step(exchange, number, at=0.2))  # and nobody asks it
    exchange.handle(*arrived(answer(0), at=0.3))
    assert exchange.counts["refused closed incarnation"] == 1
    out = exchange.handle(*arrived(answer(0, sequence=0, incarnation=1, version=0), at=0.4))
    assert exchange.counts["late"] == 1 and [type(m) for m in sent(out)] == [Ask, Ask, Ask]  # it is asked again


def test_a_returned_child_is_asked_when_the_supervisor_opens_it():
    exchange = machine(children=["child"])
    exchange.handle(Ready(0, 0.0))
    exchange.handle(Closed("child", 0, False, 0.1))
    for number in range(4):
        assert not sent(step(exchange, number, at=0.2))
    assert not sent(exchange.handle(Opened("child", 0, 0.3)))  # the closed one stays closed
    out = exchange.handle(Opened("child", 1, 0.3))
    assert [type(m) for m in sent(out)] == [Ask, Ask, Ask]


def test_a_later_incarnation_uses_every_batch_once():
    first = machine(children=["child"], steps=12)
    first.handle(Ready(0, 0.0))
    used = []
    for number in range(5):  # alternately with an answer to batch 2k + 1 and without any
        out = first.handle(Tick(1.0 + number)) if first._ready else ()
        used += [t.batch for t in only(Train, out)]
        first.handle(Trained(number, {}, 1.0 + number))
        if number < 4:
            first.handle(Ready(number + 1, 1.0 + number))
    second = machine(children=["child"], steps=12, position=first.position, incarnation=1)
    assert second.position == first.position and second.version == 5
    out = second.handle(Ready(5, 0.0))
    for number in range(5, 12):
        out = second.handle(Tick(float(number))) if not only(Train, out) else out
        used += [t.batch for t in only(Train, out)]
        out = second.handle(
            Trained(number, {}, float(number)), *([Ready(number + 1, float(number))] if number < 11 else [])
        )
    assert sorted(used) == list(range(12))


def test_gradients_and_answers_for_a_former_incarnation_are_dropped():
    exchange = machine(children=["child"], parents=["parent"])
    exchange.handle(Ready(0, 0.0))
    exchange.handle(*arrived(answer(0)))
    exchange.handle(Closed("child", 0, False, 0.1))
    assert not sent(exchange.handle(Trained(0, {"child": embedding()}, 0.2)))
    assert exchange.counts["dropped gradients to children"] == 1
    (embed,) = only(Embed, exchange.handle(*arrived(ask(0))))
    exchange.handle(Closed("parent", 0, False, 0.3))
    assert not only(Send, exchange.handle(Embedded(embed.asks, (embedding(),), 0, 0.4)))
    assert exchange.counts["dropped answers"] == 1


def test_parent_returns_with_a_new_incarnation_and_counts_from_zero():
    exchange = machine(parents=["parent"])
    exchange.handle(*arrived(ask(0), gradient(1)))
    out = exchange.handle(*arrived(ask(0, incarnation=1)))
    assert len(only(Embed, out)[0].asks) == 1 and exchange.counts["dropped gradients"] == 1
    exchange.handle(*arrived(gradient(2)))  # of the old one
    assert exchange.counts["refused closed incarnation"] == 1


def test_frozen_child_costs_one_patience_then_nothing_until_it_wakes():
    limits = replace_limits(patience=1.0, time_limit=2.0)
    exchange = machine(children=["child"], limits=limits, steps=1000)
    at, waits, number = 0.0, 0.0, 0
    out = exchange.handle(Ready(0, at))
    while at < 30.0:
        if isinstance(out[-1], Wait):
            waits += out[-1].until - at
            at = out[-1].until
            out = exchange.handle(Tick(at))
            continue
        at += 0.1
        out = step(exchange, number, at=at)
        number += 1
    assert waits <= 2.0 and number > 250
    wake = exchange.handle(*arrived(answer(0, version=0), at=at))
    assert exchange.counts["late"] == 1 and len(sent(wake)) == LIMITS.in_flight


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (ask(0, sender="child"), "wrong direction"),
        (answer(0, sender="parent"), "wrong direction"),
        (ask(0, sender="stranger"), "unknown sender"),
    ],
)
def test_messages_from_the_wrong_side_are_refused(message, reason):
    exchange = machine(children=["child"], parents=["parent"])
    exchange.handle(*arrived(message))
    assert exchange.counts[f"refused {reason}"] == 1


# ---------------------------------------------------------------- held-out rows


def test_wants_are_limited_in_flight_and_come_one_at_a_time():
    exchange = machine(children=["child"])
    out = exchange.handle(*[Want(("validation", 0, i), batch(i), 0.0) for i in range(5)])
    assert len(sent(out)) == LIMITS.in_flight
    got, waiting, sequence = [], sent(out), 0
    while waiting:
        message = waiting.pop(0)
        out = exchange.handle(*arrived(answer(message.sequence, sequence=sequence)))
        sequence += 1
        waiting += sent(out)
        assert len(only(Got, out)) == 1
        got += only(Got, out)
    assert [g.key[2] for g in got] == list(range(5)) and all(g.answers["child"] is not None for g in got)


def test_held_out_rows_are_asked_for_again_where_an_answer_was_lost():
    exchange = machine(children=["child"])
    first = sent(exchange.handle(*[Want(("test", 0, i), batch(i), 0.0) for i in range(3)]))
    out = exchange.handle(Tick(10.0))
    (again,) = sent(out)  # one probe at a time
    assert not only(Got, out) and len(first) == 2 and again.sequence > first[-1].sequence
    asked, got = [again], []
    for sequence in range(3):
        out = exchange.handle(*arrived(answer(asked.pop(0).sequence, sequence=sequence), at=11.0))
        asked, got = asked + sent(out), got + only(Got, out)
    assert sorted(g.key[2] for g in got) == [0, 1, 2] and all(g.answers["child"] is not None for g in got)


def test_wants_of_a_child_that_stays_silent_come_back_empty():
    exchange = machine(children=["child"])
    exchange.handle(Want(("test", 0, 0), batch(0), 0.0))
    assert [only(Got, exchange.handle(Tick(at))) for at in (10.0, 20.0)] == [[], []]
    (got,) = only(Got, exchange.handle(Tick(30.0)))
    assert got.answers == {"child": None}
    (got,) = only(Got, exchange.handle(Want(("test", 0, 1), batch(1), 30.1)))
    assert got.answers == {"child": None}


def test_held_out_answers_come_in_the_order_of_the_children_however_they_arrived():
    exchange = machine(children=["a", "b"])
    asks = {o.to: o.messages[0] for o in exchange.handle(Want("x", batch(0), 0.0)) if isinstance(o, Send)}
    exchange.handle(*arrived(answer(asks["b"].sequence, sender="b")))
    (got,) = only(Got, exchange.handle(*arrived(answer(asks["a"].sequence, sender="a"))))
    assert list(got.answers) == ["a", "b"] and [a.sender for a in got.answers.values()] == ["a", "b"]


def test_wants_without_children_come_back_one_per_event():
    exchange = machine()
    out = exchange.handle(Want("a", batch(0), 0.0), Want("b", batch(1), 0.0))
    assert [g.key for g in only(Got, out)] == ["a"]
    assert [g.key for g in only(Got, exchange.handle(Tick(0.0)))] == ["b"]


# ---------------------------------------------------------------- properties


@given(
    st.lists(st.sampled_from(["answer", "late", "lose"]), min_size=60, max_size=60),
    st.integers(1, 4),
    st.integers(1, 6),
)
def test_every_batch_is_used_exactly_once_whatever_the_child_does(moods, in_flight, pack):
    exchange = machine(children=["child"], limits=replace_limits(in_flight=in_flight, pack=pack), steps=30)
    used, open_, sequence, at = [], [], 0, 0.0
    out = exchange.handle(Ready(0, at))
    for mood in moods * 4:
        open_ += [m for m in sent(out) if isinstance(m, Ask)]
        if only(Train, out):
            used.append(only(Train, out)[0].batch)
            if len(used) == 30:
                break
            out = step(exchange, len(used) - 1, at=at)
        elif mood == "answer" and open_:
            out = exchange.handle(*arrived(answer(open_.pop(0).sequence, sequence=sequence), at=at))
            sequence += 1
        else:
            at += {"late": 1.0, "lose": 10.0}.get(mood, 0.5)
            out = exchange.handle(Tick(at))
    assert sorted(used) == list(range(30))


@given(st.lists(st.integers(0, 30), max_size=80))
def test_any_order_of_any_copies_applies_each_gradient_at_most_once(sequences):
    exchange = machine(parents=["parent"], limits=replace_limits(queue=100), steps=200)
    applied = []
    out = exchange.handle(Ready(0, 0.0))
    for number, sequence in enumerate(sequences):
        applied += [g.sequence for t in only(Train, out) for g in t.gradients]
        arrivals = arrived(gradient(sequence))
        out = exchange.handle(*arrivals, Trained(number, {}, 0.0), Ready(number + 1, 0.0))
    applied += [g.sequence for t in only(Train, out) for g in t.gradients]
    assert len(applied) == len(set(applied)) <= len(set(sequences))
    stale = exchange.counts["refused stale"]
    assert len(applied) + stale + exchange.queued == len(set(sequences))


@given(st.integers(0, 3 * WINDOW))
def test_memory_of_sequences_is_bounded(gap):
    exchange = machine(parents=["parent"])
    for sequence in range(gap, gap + 2 * WINDOW, 7):
        exchange.handle(*arrived(ask(sequence)))
    assert len(exchange._parents["parent"].seen) <= WINDOW


@given(st.data())
def test_random_traffic_never_raises_and_always_offers_a_way_on(data):
    """Whatever arrives in whatever order, a ready learner is told to train or how long to wait."""
    exchange = machine(children=["child"], parents=["parent"], steps=1000)
    at, number = 0.0, 0
    out = exchange.handle(Ready(0, at))
    for _ in range(data.draw(st.integers(1, 40))):
        at += data.draw(st.sampled_from([0.0, 0.3, 1.0, 11.0]))
        kind = data.draw(st.sampled_from(["answer", "ask", "gradient", "tick", "close", "nan"]))
        sequence = data.draw(st.integers(0, 20))
        incarnation = data.draw(st.integers(0, 2))
        event = {
            "answer": Arrived(answer(sequence, sequence=sequence, incarnation=incarnation), at),
            "ask": Arrived(ask(sequence, incarnation=incarnation), at),
            "gradient": Arrived(gradient(sequence, incarnation=incarnation), at),
            "tick": Tick(at),
            "close": Closed(data.draw(st.sampled_from(["child", "parent"])), incarnation, False, at),
            "nan": Arrived(answer(sequence, sequence=sequence, value=np.nan, incarnation=incarnation), at),
        }[kind]
        if only(Train, out):
            used = only(Train, out)[0].answers["child"]
            out = exchange.handle(Trained(number, {"child": embedding()} if used else {}, at), Ready(number + 1, at))
            number += 1
        out = exchange.handle(event) if not only(Train, out) else out
        assert isinstance(out[-1], (Train, Wait))
        assert len(exchange._children["child"].requests) <= LIMITS.in_flight + 1
        if isinstance(out[-1], Wait):
            assert out[-1].until <= at + LIMITS.patience
