"""The Mach learner: an encoder, a head, and a synthetic input that stands in for the children.

A step module: TensorFlow 2.6 and Python 3.8 can run it, and it needs no Keras. Values in, values out; whoever calls
owns the thread, the clock and the messages.

    children's embeddings d (or the synthetic ones, s) and features x -> encoder -> embedding -> head -> logits

Letters: B rows of a training batch, F features, D width of all children's embeddings together, E own embedding,
C classes, K children, G rows of parents' gradients, A rows of an answer.
"""

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from learners import attribution, networks, optimizers


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


METRICS = ("loss/child", "loss/synthetic", "accuracy/child", "accuracy/synthetic", "distillation", "gradient_norm")
EVALUATED = ("loss/child", "loss/synthetic", "accuracy/child", "accuracy/synthetic", "distillation")
ATTRIBUTION_ROWS = 64


class Mach(tf.Module):
    """Weights, optimiser states and compiled functions of one learner.

    A step is one compiled call. All its gradients are taken at the weights before it:
        target    mean cross-entropy of encoder and head, averaged over the pass with the children's embeddings and the
                  pass with the synthetic ones (only the latter while no child has answered)
        distil    `weight` x mean squared error of the synthetic input against what children answered, and the
                  synthetic pass's share of the target loss
        parents   the encoder's derivative of <embedding, gradient> for gradients that parents sent, with the same
                  forward pass as the answer they got: synthetic input, no dropout
    Each objective has an optimiser state of its own. Without children there is no synthetic input and one target pass.
    """

    def __init__(
        self, shape: Shape, rule: optimizers.Rule, *, seed: int, dropout: float = 0.0, weight: float = 1.0
    ) -> None:
        super().__init__()
        self.shape, self.rule, self.dropout, self.weight = shape, rule, dropout, weight
        self.downstream = sum(shape.children)
        widths = {
            "encoder": (shape.features + self.downstream, *shape.hidden, shape.embedding),
            "head": (shape.embedding, shape.classes),
            "synthetic": (shape.features, *shape.synthetic, self.downstream) if shape.children else (),
        }
        self._initial = {part: networks.initial(seed + n, w) for n, (part, w) in enumerate(widths.items())}
        self.encoder, self.head, self.synthetic = (
            [tf.Variable(w, name=f"{part}/{i}") for i, w in enumerate(weights)]
            for part, weights in self._initial.items()
        )
        objectives = {"target": self.encoder + self.head, "distil": self.synthetic}
        objectives["parents"] = self.encoder if shape.gradient_rows else []
        self.slots = {
            name: [[tf.Variable(tf.zeros_like(w)) for _ in range(optimizers.SLOTS[rule.name])] for w in weights]
            for name, weights in objectives.items()
        }
        self.counts = dict.fromkeys(objectives, 0)  # updates of each objective
        self._mask_seed = seed & 0x7FFFFFFF
        self._train = tf.function(self._train_step, jit_compile=True)
        self._embed = tf.function(self._embed_rows, jit_compile=True)
        self._evaluate = tf.function(self._evaluate_rows, jit_compile=True)
        self._attribute = tf.function(self._attribute_rows, jit_compile=True)

    # -- values in, values out

    @property
    def version(self) -> int:
        """Steps done."""
        return self.counts["target"]

    def warm_up(self) -> None:
        """Compile what training needs, then put every variable back."""
        shape, saved = self.shape, self.save()
        x, y = np.zeros((shape.batch, shape.features), np.float32), np.zeros(shape.batch, np.int32)
        self.train(x, y, [None] * len(shape.children), [], 0.0)
        if shape.gradient_rows:
            self.train(x, y, [None] * len(shape.children), [(x[:1], np.zeros((1, shape.embedding), np.float32))], 0.0)
            self.embed(x[:1])
        self.evaluate(x[:1], y[:1], [None] * len(shape.children))
        self.restore(saved)

    def train(
        self,
        x_BF: np.ndarray,
        labels_B: np.ndarray,
        embeddings: Sequence[Optional[np.ndarray]],
        gradients: Sequence[Tuple[np.ndarray, np.ndarray]],
        rate: float,
    ) -> Trained:
        """Take one step.

        Args:
            x_BF, labels_B: the batch, scaled float32 and int32.
            embeddings: each child's [B, E_k], or None where it has not answered.
            gradients: (features [g, F], gradient [g, E]) of each parent that sent one; at most G rows in all.
            rate: learning rate of this step.
        """
        d_BD, present_K = self._joined(embeddings, len(x_BF))
        parents: Tuple[Optional[np.ndarray], Optional[np.ndarray]] = (None, None)
        if gradients:
            x_gF, g_gE = (np.concatenate(part) for part in zip(*gradients))
            parents = (_padded(x_gF, self.shape.gradient_rows), _padded(g_gE, self.shape.gradient_rows))
        for name in self.counts:
            self.counts[name] += bool(gradients) if name == "parents" else 1
        counts = np.array([self.counts["target"], max(1, self.counts["parents"])], np.float32)
        mask = np.array([self._mask_seed, self.version], np.int32)
        to_children, metrics = self._train(x_BF, labels_B, d_BD, present_K, *parents, np.float32(rate), counts, mask)
        named = dict(zip(METRICS, metrics.numpy().tolist()))
        if not self.synthetic:
            named = {key: named[key] for key in ("loss/child", "accuracy/child", "gradient_norm")}
        elif not present_K.any():
            named = {key: value for key, value in named.items() if "child" not in key and key != "distillation"}
        return Trained(np.split(to_children.numpy(), np.cumsum(self.shape.children)[:-1], axis=1), named)

    def embed(self, x_NF: np.ndarray) -> np.ndarray:
        """Embeddings [N, E] of any number of rows, with the synthetic input and without dropout."""
        size = self.shape.answer_rows or self.shape.batch
        chunks = [self._embed(_padded(x_NF[i : i + size], size)).numpy() for i in range(0, len(x_NF), size)]
        return np.concatenate(chunks)[: len(x_NF)]

    def evaluate(
        self, x_NF: np.ndarray, labels_N: np.ndarray, embeddings: Sequence[Optional[np.ndarray]]
    ) -> Dict[str, float]:
        """Mean loss, accuracy and distillation error over N rows, with the children and with the synthetic input."""
        d_ND, present_K = self._joined(embeddings, len(x_NF))
        size, sums = self.shape.batch, np.zeros(len(EVALUATED))
        for i in range(0, len(x_NF), size):
            counted = _padded(np.ones(len(x_NF[i : i + size]), np.float32), size)
            parts = (_padded(a[i : i + size], size) for a in (x_NF, labels_N, d_ND))
            sums += self._evaluate(*parts, counted, present_K).numpy()
        named = dict(zip(EVALUATED, (sums / len(x_NF)).tolist()))
        if not self.synthetic:
            return {key: named[key] for key in ("loss/child", "accuracy/child")}
        if not present_K.all():
            return {key: value for key, value in named.items() if key.endswith("synthetic")}
        return named

    def attribute(
        self, x_NF: np.ndarray, labels_N: np.ndarray, embeddings: Sequence[Optional[np.ndarray]]
    ) -> Dict[str, float]:
        """What the columns of the features and of the children's embeddings are worth, on up to 64 rows."""
        size = min(ATTRIBUTION_ROWS, self.shape.batch)
        d_ND, present_K = self._joined(embeddings, len(x_NF))
        repeat = np.arange(size) % len(x_NF)  # a smaller set is repeated: means stay what they are
        values = self._attribute(x_NF[repeat], labels_N[repeat], d_ND[repeat], present_K).numpy()
        names = [f"{score}/{part}" for part in ("inputs", "downstream") for score in _SCORES]
        return {key: float(v) for key, v in zip(names, values.ravel()) if self.synthetic or "downstream" not in key}

    def norms(self) -> Dict[str, float]:
        """Euclidean norm of the weights of each part."""
        parts = {"encoder": self.encoder, "head": self.head, "synthetic": self.synthetic}
        return {f"weight_norm/{name}": float(tf.linalg.global_norm(ws)) for name, ws in parts.items() if ws}

    def save(self) -> Dict[str, np.ndarray]:
        """The whole state, by name."""
        state = {name: np.array(variable) for name, variable in self._named()}
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
        """The children's embeddings side by side [B, D], zeros for those that are missing, and who is there [K]."""
        columns = [
            np.zeros((rows, width), np.float32) if e is None else e for e, width in zip(embeddings, self.shape.children)
        ]
        joined = np.concatenate(columns, axis=1) if columns else np.zeros((rows, 0), np.float32)
        return joined, np.array([e is not None for e in embeddings], np.float32)

    # -- compiled

    def _columns(self, present_K: tf.Tensor) -> tf.Tensor:
        """Who is there, per column of d: [D]."""
        return tf.repeat(present_K, self.shape.children, axis=0) if self.shape.children else tf.zeros([0])

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

    def _filled(self, d_BD: tf.Tensor, s_BD: tf.Tensor, columns_D: tf.Tensor) -> tf.Tensor:
        """The children's embeddings, synthetic where a child is missing; no gradient reaches the synthetic input."""
        return tf.where(columns_D > 0, d_BD, tf.stop_gradient(s_BD))

    def _train_step(
        self,
        x_BF: tf.Tensor,
        labels_B: tf.Tensor,
        d_BD: tf.Tensor,
        present_K: tf.Tensor,
        x_GF: Optional[tf.Tensor],
        g_GE: Optional[tf.Tensor],
        rate: tf.Tensor,
        counts: tf.Tensor,
        mask: tf.Tensor,
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        columns_D, anyone = self._columns(present_K), tf.reduce_max(tf.concat([present_K, [0.0]], 0))
        with tf.GradientTape() as tape:
            tape.watch(d_BD)
            s_BD = self._imagined(x_BF)
            child = self._pass(x_BF, self._filled(d_BD, s_BD, columns_D), labels_B, mask)
            synthetic = self._pass(x_BF, s_BD, labels_B, mask) if self.synthetic else child
            distillation = _mean_square(s_BD, tf.stop_gradient(d_BD), columns_D)
            share = 0.5 * anyone if self.synthetic else 1.0
            loss = share * child[0] + (1.0 - share) * synthetic[0] + self.weight * distillation
        own = self.encoder + self.head
        found = tape.gradient(loss, own + self.synthetic + [d_BD], unconnected_gradients="zero")
        updates = [("target", own, found[: len(own)], counts[0])]
        updates += [("distil", self.synthetic, found[len(own) : -1], counts[0])]
        if g_GE is not None:
            updates += [("parents", self.encoder, self._parents_gradient(x_GF, g_GE), counts[1])]
        self._apply(updates, rate)
        norm = tf.linalg.global_norm(found[:-1])
        metrics = [child[0], synthetic[0], child[1], synthetic[1], distillation, norm]
        return found[-1] / tf.maximum(share, 0.5), tf.stack(metrics)

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
        return tape.gradient(embedding, self.encoder, output_gradients=g_GE)

    def _apply(self, updates: list, rate: tf.Tensor) -> None:
        """Add up what all objectives do to a weight, then write: nothing reads a weight that is half updated."""
        totals: Dict[int, tf.Tensor] = {}
        for name, weights, gradients, count in updates:
            # only the learner's own objectives decay: a parent's gradient must not shrink a weight a second time
            rule = self.rule._replace(weight_decay=0.0) if name == "parents" else self.rule
            for weight, gradient, slots in zip(weights, gradients, self.slots[name]):
                step, new = optimizers.delta(rule, weight, gradient, slots, rate, count)
                totals[id(weight)] = totals[id(weight)] + step if id(weight) in totals else step
                for slot, value in zip(slots, new):
                    slot.assign(value)
        for weight in self.encoder + self.head + self.synthetic:
            weight.assign_add(totals[id(weight)])

    def _evaluate_rows(
        self, x_BF: tf.Tensor, labels_B: tf.Tensor, d_BD: tf.Tensor, counted_B: tf.Tensor, present_K: tf.Tensor
    ) -> tf.Tensor:
        columns_D, s_BD = self._columns(present_K), self._imagined(x_BF)
        inputs = (self._filled(d_BD, s_BD, columns_D), s_BD)
        child, synthetic = (self._scored(networks.linear(self.head, self._code(x_BF, d)), labels_B) for d in inputs)
        error_B = tf.reduce_mean(tf.square(s_BD - d_BD), 1) if self.synthetic else tf.zeros_like(counted_B)
        return tf.linalg.matvec(tf.stack([child[0], synthetic[0], child[1], synthetic[1], error_B]), counted_B)

    def _attribute_rows(self, x_BF: tf.Tensor, labels_B: tf.Tensor, d_BD: tf.Tensor, present_K: tf.Tensor) -> tf.Tensor:
        z_BI = self._combined(x_BF, self._filled(d_BD, self._imagined(x_BF), self._columns(present_K)))
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


def _mean_square(s_BD: tf.Tensor, d_BD: tf.Tensor, columns_D: tf.Tensor) -> tf.Tensor:
    """Mean squared difference over the rows and the columns that are there; 0 where none is."""
    there = tf.maximum(tf.reduce_sum(columns_D), 1.0) * tf.cast(tf.shape(s_BD)[0], tf.float32)
    return tf.reduce_sum(tf.square(s_BD - d_BD) * columns_D) / there


def _padded(values: np.ndarray, rows: int) -> np.ndarray:
    """Zero rows below, up to the compiled shape."""
    if len(values) == rows:
        return values
    assert len(values) < rows, f"{len(values)} rows do not fit into a compiled shape of {rows}"
    return np.concatenate([values, np.zeros((rows - len(values), *values.shape[1:]), values.dtype)])
