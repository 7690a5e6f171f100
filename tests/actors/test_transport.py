"""What is sent is what arrives, by the way that its size asks for."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from actors import transport
from actors.transport import Transport, Ways
from learners.footprint import BYTES, INLINE_LIMIT
from learners.messages import Answer, Ask, Ended, Features, Gradient, Rows

SIZES = {"1 kB": 1_000, "200 kB": 200_000, "8 MB": 8_000_000}


class Neighbour:
    """Stands for an actor's handle: keeps what it is called with."""

    def __init__(self):
        self.calls = []
        self.receive = SimpleNamespace(remote=lambda *messages: self.calls.append(messages))


def answer(size, sequence=0):
    values = np.random.default_rng(1).normal(size=(size // 40, 10)).astype(np.float32)
    return Answer("child", 0, sequence, ask=0, version=3, embedding=values)


def sent(*messages, precision="float32"):
    transport, there = Transport(time_limit=5.0, precision=precision), Neighbour()
    transport.connect({"there": there})
    transport.send("there", messages)
    (call,) = there.calls
    return transport, call


def gradient(rows, width):
    features = Features(np.ones((rows, width), np.float32))
    return Gradient("parent", 0, 0, version=1, batch=features, gradient=np.zeros((rows, width), np.float32))


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_message_arrives_as_it_was_whatever_its_size(ray_here, size):
    original = answer(size)
    ours, call = sent(original)
    large = size >= INLINE_LIMIT
    assert isinstance(call[0].embedding, ray_here.ObjectRef) is large
    theirs = Transport(time_limit=5.0)
    got = theirs.unpack(call[0])
    np.testing.assert_array_equal(got.embedding, original.embedding)
    assert (got.sender, got.ask, got.version) == ("child", 0, 3)
    way = "store" if large else "inline"
    assert dict(ours.bytes) == {f"sent {way}": original.embedding.nbytes}
    assert dict(theirs.bytes) == {f"received {way}": original.embedding.nbytes}


@pytest.mark.parametrize(("precision", "step"), [("float16", 2.0**-11), ("int8", 2.0**-7)])
def test_numbers_travel_in_the_precision_of_who_sends_and_whoever_receives_reads_them(ray_here, precision, step):
    original = replace(gradient(100, 20), gradient=answer(80_000).embedding * np.float32(1e-6))
    ours, (packed,) = sent(original, precision=precision)
    theirs = Transport(time_limit=5.0)
    got = theirs.unpack(packed)
    assert got.gradient.dtype == np.float32
    np.testing.assert_allclose(got.gradient, original.gradient, atol=step * np.abs(original.gradient).max())
    np.testing.assert_array_equal(got.batch.values, original.batch.values)  # the batch is never touched
    wire = original.gradient.size * BYTES[precision] + original.batch.values.nbytes
    assert sum(ours.bytes.values()) == sum(theirs.bytes.values()) == wire


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_what_an_actor_receives_is_read_only_and_can_be_computed_with(ray_here, size):
    """Case 1: arrays received are read-only above and below the inline limit; our own code copies where it adds."""

    @ray_here.remote(num_cpus=0)
    class Receiver:
        def receive(self, message):
            import tensorflow as tf

            got = Transport(time_limit=5.0).unpack(message)
            total = np.zeros_like(got.embedding)
            total += got.embedding
            total += got.embedding * np.float32(0.5)
            tensor = tf.convert_to_tensor(got.embedding) + 1.0
            return got.embedding.flags.writeable, total, float(tf.reduce_sum(tensor))

    original = answer(size)
    _, call = sent(original)
    writeable, total, summed = ray_here.get(Receiver.remote().receive.remote(call[0]), timeout=60)
    assert not writeable
    np.testing.assert_allclose(total, 1.5 * original.embedding, rtol=1e-6)
    assert summed == pytest.approx(float((original.embedding.astype(np.float64) + 1).sum()), rel=1e-3)


def test_arrays_that_only_together_pass_the_limit_part_ways(ray_here):
    """Ray looks at an argument as a whole: a message of two arrays of 64 kB would go through the store unnoticed."""
    message = gradient(rows=250, width=64)
    ours, (packed,) = sent(message)
    assert isinstance(packed.batch.values, ray_here.ObjectRef) != isinstance(packed.gradient, ray_here.ObjectRef)
    assert dict(ours.bytes) == {"sent store": 64_000, "sent inline": 64_000}
    got = Transport(5.0).unpack(packed)
    np.testing.assert_array_equal(got.batch.values, message.batch.values)
    np.testing.assert_array_equal(got.gradient, message.gradient)


def test_row_numbers_and_their_split_survive(ray_here):
    numbers = np.arange(7, dtype=np.int32)
    ours, (packed, last) = sent(Ask("parent", 0, 0, Rows("abc", numbers)), Ended("parent", 0, 1))
    got = Transport(5.0).unpack(packed)
    assert got.batch.data == "abc" and got.batch.numbers.tolist() == numbers.tolist()
    assert Transport(5.0).unpack(last) == last
    assert dict(ours.bytes) == {"sent inline": 28}


def test_messages_of_one_call_stay_in_order(ray_here):
    messages = [answer(size, sequence) for sequence, size in enumerate((1_000, 200_000, 400))]
    _, call = sent(*messages)
    assert [Transport(5.0).unpack(message).sequence for message in call] == [0, 1, 2]


def test_an_array_that_cannot_be_had_is_an_error_within_the_limit(ray_here):
    @ray_here.remote(num_cpus=0)
    def never():
        time.sleep(60)

    late = never.remote()
    message = Answer("child", 0, 0, ask=0, version=0, embedding=late)
    began = time.monotonic()
    with pytest.raises(ray_here.exceptions.GetTimeoutError):
        Transport(time_limit=0.2).unpack(message)
    assert time.monotonic() - began < 5.0
    ray_here.cancel(late, force=True)


def test_a_dead_neighbour_does_not_stop_a_sender(ray_here):
    @ray_here.remote(num_cpus=0)
    class Short:
        def receive(self, *messages):
            return len(messages)

    there = Short.remote()
    transport = Transport(time_limit=1.0)
    transport.connect({"there": there})
    assert ray_here.get(there.receive.remote(), timeout=60) == 0
    ray_here.kill(there)
    for _ in range(100):
        transport.send("there", (answer(1_000), answer(200_000)))
    assert transport.bytes["sent inline"] == 100_000 and transport.bytes["sent store"] == 20_000_000


class Parcels:
    """Stands for a member's handle; its calls are under way until the test says that they have come."""

    def __init__(self, ray):
        self.came, self.refs = [], []
        self.receive = SimpleNamespace(remote=lambda content: self.refs.append(len(self.refs)) or self._call(content))

    def _call(self, content):
        self.came.append(content)
        return self.refs[-1]


def test_to_a_neighbour_that_takes_nothing_a_few_calls_leave_and_no_more(monkeypatch):
    there, done = Parcels(None), set()

    def wait(refs, num_returns, timeout):
        return [ref for ref in refs if ref in done], [ref for ref in refs if ref not in done]

    monkeypatch.setattr(transport.ray, "wait", wait)
    ways = Ways()
    assert ways.send(1, b"nobody is there") is False
    ways.open(1, there)
    sent = [ways.send(1, bytes([i])) for i in range(transport.CALLS + 3)]
    assert sent == [True] * transport.CALLS + [False] * 3 and len(there.came) == transport.CALLS
    done |= {0, 1}  # it has woken up
    assert [ways.send(1, b"x") for _ in range(3)] == [True, True, False]
    other = Parcels(None)
    ways.open(1, other)  # or is another one: what was under way is forgotten
    assert ways.send(1, b"y") is True and other.came == [b"y"]
