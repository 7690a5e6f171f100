"""The Mach learner: an encoder, a head, and a synthetic input that stands in for the children.

A step module: TensorFlow 2.6 and Python 3.8 can run it, and it needs no Keras. Values in, values out; whoever calls
owns the thread, the clock and the messages.

    children's embeddings d (or the synthetic ones, s) and features x -> encoder -> embedding -> head -> logits

Letters: B rows of a training batch, F features, D width of all children's embeddings together, E own embedding,
C classes, K children, G rows of parents' gradients, A rows of an answer.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from learners import attribution, networks, optimizers
from learners.mechanics import charges, inside
from learners.mechanics.symmetries import Step, Symmetries, stacked, symmetries


class Shape(NamedTuple):
    """Everything that fixes the shapes of a learner's tensors."""

    features: int  #: F
    classes: int  #: C
    children: Tuple[int, ...]  #: widths of the children's embeddings, in order of concatenation
    hidden: Tuple[int, ...]
    embedding: int  #: E
    synthetic: Tuple[int, ...]  #: hidden widths of the synthetic input
    batch: int  #: B
    gradient_rows: int  #: G, most rows of gradients in one step: all parents' batches together; 0 without parents
    answer_rows: int  #: A, rows embedded in one call; larger requests go in chunks, smaller ones are padded


class Trained(NamedTuple):
    """What one step gives."""

    gradients: List[np.ndarray]  #: derivative of the child pass's mean loss by each child's embedding, [B, E_k]
    metrics: Dict[str, float]
    sums: Optional[np.ndarray] = None  #: of a learner that watches its laws: rows of `mechanics.inside.SUMS`
    looked: Optional[np.ndarray] = None  #: and of its LOOKED, if the call asked for them


class Measured(NamedTuple):
    """Of the weights as they are, per unit of all laws [N]."""

    charges: np.ndarray
    sizes: np.ndarray
    buffers: List[np.ndarray]  #: what the two momentum buffers are along the charge, the learner's own and the parents'


METRICS = ("loss/child", "loss/synthetic", "accuracy/child", "accuracy/synthetic", "distillation", "gradient_norm")
EVALUATED = ("loss/child", "loss/synthetic", "accuracy/child", "accuracy/synthetic", "distillation")
ATTRIBUTION_ROWS = 32


class Mach(tf.Module):
    """Weights, optimiser states and compiled functions of one learner.

    A step is one compiled call. All its gradients are taken at the weights before it:
        target    mean cross-entropy of encoder and head, averaged over the pass with the children's embeddings and the
                  pass with the synthetic ones (only the latter while no child has answered)
        distil    `weight` x mean squared error of the synthetic input against what children answered, and the
                  synthetic pass's share of the target loss
        parents   the encoder's derivative of <embedding, gradient> for gradients that parents sent, with the same
                  forward pass as the answer they got: synthetic input, no dropout; at `parents_rate` x the rate
    Each objective has an optimiser state of its own. Without children there is no synthetic input and one target pass.
    """

    def __init__(
        self,
        shape: Shape,
        rule: optimizers.Rule,
        *,
        seed: int,
        dropout: float = 0.0,
        weight: float = 1.0,
        parents_rate: float = 1.0,
        watched: bool = False,
    ) -> None:
        """`watched`: whether steps measure what the laws of mechanics need."""
        super().__init__()
        self.shape, self.rule, self.dropout, self.weight, self.parents_rate = shape, rule, dropout, weight, parents_rate
        self.downstream = sum(shape.children)
        widths = {
            "encoder": (shape.features + self.downstream, *shape.hidden, shape.embedding),
            "head": (shape.embedding, shape.classes),
            "synthetic": (shape.features, *shape.synthetic, self.downstream) if shape.children else (),
        }
        self.encoder, self.head, self.synthetic = (
            [tf.Variable(w, name=f"{part}/{i}") for i, w in enumerate(networks.initial(seed + n, widths[part]))]
            for n, part in enumerate(("encoder", "head", "synthetic"))
        )
        self.objectives = {  # the weights that each one moves
            "target": self.encoder + self.head,
            "distil": self.synthetic,
            "parents": self.encoder if shape.gradient_rows else [],
        }
        self.slots = {
            name: [[tf.Variable(tf.zeros_like(w)) for _ in range(optimizers.SLOTS[rule.name])] for w in weights]
            for name, weights in self.objectives.items()
        }
        self.counts = dict.fromkeys(self.objectives, 0)  # updates of each objective
        self._mask_seed = seed & 0x7FFFFFFF
        self._weights = self.encoder + self.head + self.synthetic
        self.symmetries = self._symmetries() if watched else Symmetries((), ())
        #: what is measured; None: nothing
        self.measuring: Optional[inside.Measuring] = self._measuring() if watched else None
        self._train = tf.function(self._train_step, jit_compile=True, autograph=False)
        self._embed = tf.function(self._embed_rows, jit_compile=True, autograph=False)
        # these two are as fast without XLA, which takes 1.1 s to compile them
        self._evaluate = tf.function(self._evaluate_rows, autograph=False)
        self._attribute = tf.function(self._attribute_rows, autograph=False)
        self._charges = tf.function(self._charged, jit_compile=True, autograph=False)

    # -- values in, values out

    @property
    def version(self) -> int:
        """Steps done."""
        return self.counts["target"]

    def warm_up(self, attributed: int = 0) -> None:
        """Trace and compile what training needs, then put every variable back.

        Args:
            attributed: rows that `attribute` will be called with; 0 if it will not.
        """
        shape, saved = self.shape, self.save()
        x, y = np.zeros((shape.batch, shape.features), np.float32), np.zeros(shape.batch, np.int32)
        nobody: List[Optional[np.ndarray]] = [None] * len(shape.children)
        # each is a compiled function of its own: what is measured now and then costs the other steps nothing
        for look in (False, True) if self.measuring else (False,):
            self.train(x, y, nobody, [], 0.0, look)
            if shape.gradient_rows:
                self.train(x, y, nobody, [(x[:1], np.zeros((1, shape.embedding), np.float32))], 0.0, look)
        if shape.gradient_rows:
            self.embed(x[:1])
        self.evaluate(x[:1], y[:1], nobody)
        if self.measuring and not self.measuring.exact:
            self.charges()
        if attributed:
            self.attribute(x[:attributed], y[:attributed], nobody)
        self.restore(saved)

    def train(
        self,
        x_BF: np.ndarray,
        labels_B: np.ndarray,
        embeddings: Sequence[Optional[np.ndarray]],
        gradients: Sequence[Tuple[np.ndarray, np.ndarray]],
        rate: float,
        look: bool = False,
    ) -> Trained:
        """Take one step.

        Args:
            x_BF, labels_B: the batch, scaled float32 and int32.
            embeddings: each child's [B, E_k], or None where it has not answered.
            gradients: (features [g, F], gradient [g, E]) of each parent that sent one; at most G rows in all.
            rate: learning rate of this step.
            look: whether to measure what laws are compared with; a learner that is not watched never does.
        """
        d_BD, there_D = self._joined(embeddings, len(x_BF))
        parents: Tuple[Optional[np.ndarray], Optional[np.ndarray]] = (None, None)
        if gradients:
            x_gF, g_gE = (np.concatenate(part) for part in zip(*gradients))
            parents = (_padded(x_gF, self.shape.gradient_rows), _padded(g_gE, self.shape.gradient_rows))
        for name in self.counts:
            self.counts[name] += bool(gradients) if name == "parents" else 1
        counts = np.maximum(1, list(self.counts.values())).astype(np.float32)
        mask = np.array([self._mask_seed, self.version], np.int32)
        to_children, metrics, sums, looked = self._train(
            x_BF, labels_B, d_BD, there_D, *parents, np.float32(rate), counts, mask, look and self.measuring is not None
        )
        named = dict(zip(METRICS, metrics.numpy().tolist()))
        if not self.synthetic:
            named = {key: named[key] for key in ("loss/child", "accuracy/child", "gradient_norm")}
        elif not there_D.any():
            named = {key: value for key, value in named.items() if "child" not in key and key != "distillation"}
        ends = np.cumsum(self.shape.children, dtype=int)
        given = np.split(to_children.numpy(), ends, axis=1)[:-1]
        if self.measuring is None:
            return Trained(given, named)
        return Trained(given, named, sums.numpy(), looked.numpy() if look else None)

    def embed(self, x_NF: np.ndarray) -> np.ndarray:
        """Embeddings [N, E] of any number of rows, with the synthetic input and without dropout."""
        size = self.shape.answer_rows or self.shape.batch
        chunks = [self._embed(_padded(x_NF[i : i + size], size)).numpy() for i in range(0, len(x_NF), size)]
        return np.concatenate(chunks)[: len(x_NF)]

    def evaluate(
        self, x_NF: np.ndarray, labels_N: np.ndarray, embeddings: Sequence[Optional[np.ndarray]]
    ) -> Dict[str, float]:
        """Mean loss, accuracy and distillation error over N rows, with the children and with the synthetic input."""
        d_ND, there_D = self._joined(embeddings, len(x_NF))
        size, sums = self.shape.batch, np.zeros(len(EVALUATED))
        for i in range(0, len(x_NF), size):
            counted = _padded(np.ones(len(x_NF[i : i + size]), np.float32), size)
            parts = (_padded(a[i : i + size], size) for a in (x_NF, labels_N, d_ND))
            sums += self._evaluate(*parts, counted, there_D).numpy()
        named = dict(zip(EVALUATED, (sums / len(x_NF)).tolist()))
        if not self.synthetic:
            return {key: named[key] for key in ("loss/child", "accuracy/child")}
        if not there_D.all():
            return {key: value for key, value in named.items() if key.endswith("synthetic")}
        return named

    def attribute(
        self, x_NF: np.ndarray, labels_N: np.ndarray, embeddings: Sequence[Optional[np.ndarray]]
    ) -> Dict[str, float]:
        """What the columns of the features and of the children's embeddings are worth, on the first 32 rows.

        Traced anew for every number of rows below.
        """
        d_ND, there_D = self._joined(embeddings, len(x_NF))
        values = self._attribute(*(a[:ATTRIBUTION_ROWS] for a in (x_NF, labels_N, d_ND)), there_D).numpy()
        names = [f"{score}/{part}" for part in ("inputs", "downstream") for score in _SCORES]
        return {key: float(v) for key, v in zip(names, values.ravel()) if self.synthetic or "downstream" not in key}

    def norms(self) -> Dict[str, float]:
        """Euclidean norm of the weights of each part."""
        parts = {"encoder": self.encoder, "head": self.head, "synthetic": self.synthetic}
        return {f"weight_norm/{name}": float(tf.linalg.global_norm(ws)) for name, ws in parts.items() if ws}

    def charges(self) -> np.ndarray:
        """Charge and size of every unit of a watched learner's laws [2, N], float64."""
        found: np.ndarray = self._charges().numpy()
        return found

    def measured(self) -> Measured:
        """What the laws of a watched learner begin from; slow, for once in a while."""
        laws = self.symmetries.laws
        weights = [w.numpy() for w in self._weights]
        along = []
        for name in ("own", "parents"):
            firsts = {id(w): slots[0] for one in self._named_by(name) for w, slots in one if slots}
            vector = [firsts[id(w)].numpy() if id(w) in firsts else np.zeros(w.shape) for w in self._weights]
            along.append(
                charges.along(laws, weights, vector) if self.measuring and self.measuring.exact else np.zeros(0)
            )
        return Measured(charges.charges(laws, weights), charges.sizes(laws, weights), along)

    def save(self) -> Dict[str, np.ndarray]:
        """The whole state, by name."""
        state = {name: variable.numpy().copy() for name, variable in self._named()}
        state.update({f"counts/{name}": np.array(count) for name, count in self.counts.items()})
        return state

    def restore(self, state: Dict[str, np.ndarray]) -> None:
        """Take over a state that `save` gave."""
        for name, variable in self._named():
            variable.assign(state[name])
        self.counts = {name: int(state[f"counts/{name}"]) for name in self.counts}

    def _named(self) -> List[Tuple[str, tf.Variable]]:
        parts = {"encoder": self.encoder, "head": self.head, "synthetic": self.synthetic}
        named = [(f"{part}/{i}", w) for part, ws in parts.items() for i, w in enumerate(ws)]
        return named + [
            (f"slots/{name}/{i}/{k}", slot)
            for name, slots in self.slots.items()
            for i, pair in enumerate(slots)
            for k, slot in enumerate(pair)
        ]

    def _joined(self, embeddings: Sequence[Optional[np.ndarray]], rows: int) -> Tuple[np.ndarray, np.ndarray]:
        """The children's embeddings side by side [B, D], zeros where one is missing; which columns are there [D]."""
        columns = [
            np.zeros((rows, width), np.float32) if e is None else e for e, width in zip(embeddings, self.shape.children)
        ]
        joined = np.concatenate(columns, axis=1) if columns else np.zeros((rows, 0), np.float32)
        there_K = np.array([e is not None for e in embeddings], np.float32)
        return joined, np.repeat(there_K, self.shape.children)

    # -- the laws of mechanics

    def _symmetries(self) -> Symmetries:
        """Of encoder and head, and of the synthetic input; tensors are numbered as in `_weights`."""
        shapes = [tuple(w.shape) for w in self._weights]
        layers = [f"encoder_{i}" for i in range(len(self.encoder) // 2)]
        head, first = len(self.encoder), len(self.encoder) + len(self.head)
        steps = stacked(layers, dropout_before=len(layers) - 1)
        found = symmetries([*steps, Step("dense", "head", head, head + 1), Step("softmax", "loss")], shapes)
        below = stacked([f"synthetic_{i}" for i in range(len(self.synthetic) // 2)], first)
        compared = Step("other", "distillation", detail="it is compared with what the children answer")
        imagined = symmetries([*below, compared], shapes)
        return Symmetries(found.laws + imagined.laws, found.without + imagined.without)

    def _measuring(self) -> inside.Measuring:
        """A parent's gradient comes through the embedding: it lacks the symmetries that the head has a part in."""
        graded, encoder = bool(self.shape.gradient_rows), range(len(self.encoder))
        driven = []
        for law in self.symmetries.laws:
            moved = [term.tensor in encoder for term in law.terms]
            driven.append(graded and any(moved) and not all(moved))
        return inside.Measuring(self.symmetries.laws, tuple(driven), self.rule.name)

    def _named_by(self, who: str) -> List[Any]:
        """Weights and slots of the learner's own objectives, or of the parents'."""
        names = ("parents",) if who == "parents" else ("target", "distil")
        return [list(zip(self.objectives[name], self.slots[name])) for name in names]

    def _charged(self) -> tf.Tensor:
        return tf.stack(inside.charges(self.symmetries.laws, self._weights))

    def _observed(
        self,
        what: inside.Measuring,
        theta: List[tf.Tensor],
        moves: Dict[str, List[Any]],
        rate: tf.Tensor,
        look: bool,
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """The sums of this step; `theta` are the weights before it."""
        place = {id(w): i for i, w in enumerate(self._weights)}
        by_tensor: Dict[str, Dict[int, Any]] = {"own": {}, "parents": {}}
        for name, weights in self.objectives.items():
            who = "parents" if name == "parents" else "own"
            if name in moves:
                by_tensor[who].update({place[id(w)]: parts for w, parts in zip(weights, moves[name])})
            else:  # parents have sent nothing: what their buffers hold stays
                kept = [(None, None, slots[0] if slots else None) for slots in self.slots[name]]
                by_tensor[who].update({place[id(w)]: parts for w, parts in zip(weights, kept)})
        own = inside.objective(len(theta), by_tensor["own"], True)
        parents = inside.objective(len(theta), by_tensor["parents"], "parents" in moves)
        decay = rate * self.rule.weight_decay if self.rule.decay == "decoupled" else 0.0

        def whole() -> List[Optional[tf.Tensor]]:
            pairs = zip(theta, own.deltas, parents.deltas)
            return [mine - decay * w + (0.0 if theirs is None else theirs) for w, mine, theirs in pairs]

        looked = inside.now_and_then(what, theta, own, whole) if look else tf.zeros([0, 0])
        return inside.every_step(what, theta, own, parents), looked

    # -- compiled

    def _combined(self, x_BF: tf.Tensor, d_BD: tf.Tensor) -> tf.Tensor:
        """Input of the encoder. The one place that says how several children are combined."""
        return tf.concat([x_BF, d_BD], 1) if self.shape.children else x_BF

    def _code(self, x_BF: tf.Tensor, d_BD: tf.Tensor, mask: Optional[tf.Tensor] = None) -> tf.Tensor:
        hidden = networks.dense(self.encoder[:-2], self._combined(x_BF, d_BD))
        if mask is not None:
            hidden = networks.dropout(hidden, self.dropout, mask)
        return networks.dense(self.encoder[-2:], hidden)

    def _imagined(self, x_BF: tf.Tensor) -> tf.Tensor:
        """The synthetic input: what the children would answer, [B, D]."""
        return networks.dense(self.synthetic, x_BF) if self.synthetic else tf.zeros([tf.shape(x_BF)[0], 0])

    def _embed_rows(self, x_AF: tf.Tensor) -> tf.Tensor:
        return self._code(x_AF, self._imagined(x_AF))

    @staticmethod
    def _filled(d_BD: tf.Tensor, s_BD: tf.Tensor, there_D: tf.Tensor) -> tf.Tensor:
        """The children's embeddings, synthetic where a child is missing; no gradient reaches the synthetic input."""
        return tf.where(there_D > 0.0, d_BD, tf.stop_gradient(s_BD))

    def _train_step(
        self,
        x_BF: tf.Tensor,
        labels_B: tf.Tensor,
        d_BD: tf.Tensor,
        there_D: tf.Tensor,
        x_GF: Optional[tf.Tensor],
        g_GE: Optional[tf.Tensor],
        rate: tf.Tensor,
        counts: tf.Tensor,
        mask: tf.Tensor,
        look: bool,
    ) -> Tuple[tf.Tensor, ...]:
        share = 0.5 * tf.reduce_max(there_D) if self.synthetic else 1.0  # of the child pass in the target loss
        with tf.GradientTape() as tape:
            tape.watch(d_BD)
            s_BD = self._imagined(x_BF)
            child = self._pass(x_BF, self._filled(d_BD, s_BD, there_D), labels_B, mask)
            synthetic = self._pass(x_BF, s_BD, labels_B, mask) if self.synthetic else child
            distillation = _mean_square(s_BD, tf.stop_gradient(d_BD), there_D)
            loss = share * child[0] + (1.0 - share) * synthetic[0] + self.weight * distillation
        own = self.encoder + self.head
        *found, to_children = tape.gradient(loss, own + self.synthetic + [d_BD], unconnected_gradients="zero")
        gradients = {"target": found[: len(own)], "distil": found[len(own) :]}
        if g_GE is not None:
            gradients["parents"] = self._parents_gradient(x_GF, g_GE)
        observed = self._apply(gradients, rate, counts, look)
        norm = tf.linalg.global_norm(found)
        metrics = [child[0], synthetic[0], child[1], synthetic[1], distillation, norm]
        # children get the derivative of the whole loss of the child pass; where none answered it is 0 / 0.5
        return (to_children / tf.maximum(share, 0.5), tf.stack(metrics), *observed)

    def _pass(
        self, x_BF: tf.Tensor, d_BD: tf.Tensor, labels_B: tf.Tensor, mask: Optional[tf.Tensor]
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """Mean cross-entropy and accuracy."""
        losses, hits = self._scored(networks.linear(self.head, self._code(x_BF, d_BD, mask)), labels_B)
        return tf.reduce_mean(losses), tf.reduce_mean(hits)

    @staticmethod
    def _scored(logits_BC: tf.Tensor, labels_B: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels_B, logits=logits_BC)
        hits = tf.equal(tf.argmax(logits_BC, 1, output_type=tf.int32), labels_B)
        return losses, tf.cast(hits, tf.float32)

    def _parents_gradient(self, x_GF: tf.Tensor, g_GE: tf.Tensor) -> List[tf.Tensor]:
        with tf.GradientTape() as tape:
            embedding = self._code(x_GF, tf.stop_gradient(self._imagined(x_GF)))
        found: List[tf.Tensor] = tape.gradient(embedding, self.encoder, output_gradients=g_GE)
        return found

    def _apply(
        self, gradients: Dict[str, List[tf.Tensor]], rate: tf.Tensor, counts: tf.Tensor, look: bool
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """Work out what every objective does to its weights, then write: no weight is read after its first change.

        Returns what the laws need of it.
        """
        writes: List[Any] = []
        moves: Dict[str, List[Any]] = {}
        what, theta = self.measuring, [tf.convert_to_tensor(w) for w in self._weights]
        for count, (name, weights) in zip(tf.unstack(counts, len(self.objectives)), self.objectives.items()):
            rule, speed = self.rule, rate
            if name == "parents":
                # only the learner's own objectives decay: a parent's gradient must not shrink a weight a second time
                rule, speed = self.rule._replace(weight_decay=0.0), self.parents_rate * rate
            decay = speed * rule.weight_decay if rule.decay == "decoupled" else 0.0
            if name not in gradients:
                continue
            moves[name] = []
            for weight, gradient, slots in zip(weights, gradients[name], self.slots[name]):
                addition, new = optimizers.delta(rule, weight, gradient, slots, speed, count)
                writes += [(weight.assign_add, addition), *zip((slot.assign for slot in slots), new)]
                bare = addition + decay * weight if rule.weight_decay and rule.decay == "decoupled" else addition
                moves[name].append((gradient, bare, new[0] if new else None))
        nothing = tf.zeros([0, 0])
        observed = self._observed(what, theta, moves, rate, look) if what else (nothing, nothing)
        for write, value in writes:
            write(value)
        return observed

    def _evaluate_rows(
        self, x_BF: tf.Tensor, labels_B: tf.Tensor, d_BD: tf.Tensor, counted_B: tf.Tensor, there_D: tf.Tensor
    ) -> tf.Tensor:
        s_BD = self._imagined(x_BF)
        inputs = (self._filled(d_BD, s_BD, there_D), s_BD)
        child, synthetic = (self._scored(networks.linear(self.head, self._code(x_BF, d)), labels_B) for d in inputs)
        error_B = tf.reduce_mean(tf.square(s_BD - d_BD), 1) if self.synthetic else tf.zeros_like(counted_B)
        return tf.linalg.matvec(tf.stack([child[0], synthetic[0], child[1], synthetic[1], error_B]), counted_B)

    def _attribute_rows(self, x_BF: tf.Tensor, labels_B: tf.Tensor, d_BD: tf.Tensor, there_D: tf.Tensor) -> tf.Tensor:
        z_BI = self._combined(x_BF, self._filled(d_BD, self._imagined(x_BF), there_D))
        kernel, bias = self.encoder[:2]

        def above(pre_BH: tf.Tensor) -> tf.Tensor:
            return networks.linear(self.head, networks.dense(self.encoder[2:], tf.nn.relu(pre_BH)))

        scores = attribution.first_layer(above, kernel, bias, z_BI, labels_B)
        path = attribution.integrated_gradients(lambda z: above(z @ kernel + bias), z_BI, labels_B)
        used_I = tf.reduce_sum(tf.abs(path), 0)
        used_I = used_I / tf.maximum(tf.reduce_sum(used_I), 1e-30)
        rows = []
        for part in (slice(None, self.shape.features), slice(self.shape.features, None)):
            means = [tf.reduce_mean(s[part]) for s in (scores.gradient, scores.weight)]
            rows.append(tf.stack([tf.reduce_sum(scores.pruning[part]), *means, tf.reduce_sum(used_I[part])]))
        return tf.stack(rows)


_SCORES = ("pruning", "absolute_gradient", "weight_magnitude", "integrated_gradients")


def _mean_square(s_BD: tf.Tensor, d_BD: tf.Tensor, there_D: tf.Tensor) -> tf.Tensor:
    """Mean squared difference over the rows and the columns that are there; 0 where none is."""
    entries = tf.maximum(tf.reduce_sum(there_D), 1.0) * tf.cast(tf.shape(s_BD)[0], tf.float32)
    return tf.reduce_sum(tf.square(s_BD - d_BD) * there_D) / entries


def _padded(values: np.ndarray, rows: int) -> np.ndarray:
    """Zero rows below, up to the compiled shape."""
    if len(values) == rows:
        return values
    assert len(values) < rows, f"{len(values)} rows do not fit into a compiled shape of {rows}"
    return np.concatenate([values, np.zeros((rows - len(values), *values.shape[1:]), values.dtype)])
