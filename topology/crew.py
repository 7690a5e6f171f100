"""Makes the actors of a run: recorder, keeper, and the learners, each as often as it must be started."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from learners.layout import Network
from learners.options import Mach, Topology, group_of, member
from learners.seeds import derive

MEGABYTE = 1e6


class Crew:
    """The actors of one run, and how to make a learner anew.

    Args:
        folder: of the run.
        beside: folder of the run file.
        networks: of the user's, by learner.
    """

    def __init__(
        self, ray: Any, topology: Topology, dataset: Any, folder: Path, beside: Path, networks: Mapping[str, Network]
    ) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        from actors.keeper import KeeperActor
        from actors.recorder import RecorderActor

        self._ray, self._topology, self._folder = ray, topology, folder
        self._dataset, self._networks = dataset, networks
        # beside the driver: hosts share no disk, and the run folder is here
        self._here = here = On(ray.get_runtime_context().get_node_id(), soft=False)
        self.recorder = RecorderActor.options(scheduling_strategy=here).remote(str(folder))
        sets = str(folder / "checkpoints")
        self.keeper = KeeperActor.options(scheduling_strategy=here).remote(sets, topology.checkpoint.keep)
        self._setups = setups(ray, topology, dataset, self.recorder, self.keeper, beside)

    def relay(self, group: str, incarnation: int) -> Any:
        """Start the relay of a group of workers, which keeps its log; returns its handle."""
        from actors.membership import limits_of
        from actors.relay import RelayActor, Setup
        from topology.workers import of

        options, data = self._topology.workers[group], self._dataset
        setup = Setup(
            incarnation=incarnation,
            folder=self._folder / "log" / group,
            options=options,
            tensors=of(group, options, data.shape, data.classes, self._networks).tensors,
            seed=derive(self._topology.seed, "bases", group),
            limits=limits_of(options),
        )
        return RelayActor.options(scheduling_strategy=self._here).remote(setup)

    def start(self, name: str, incarnation: int, state: Optional[bytes] = None, relay: Any = None) -> Any:
        """Start a learner as this incarnation, going on from a checkpoint file if one is given; returns its handle.

        Args:
            relay: of its group.
        """
        from actors.mach import MachActor
        from actors.rbd import RbdActor

        learner = self._topology.learners[group_of(name)]
        kind = MachActor if isinstance(learner, Mach) else RbdActor
        custom = {key: amount for key, amount in learner.resources.items() if key not in ("cpus", "gpus")}
        kept = () if state is None else (self._ray.put(state),)
        like = self._setups.get(name) or replace(self._setups[member(group_of(name), 0)], name=name)  # came later
        setup = replace(like, incarnation=incarnation, state=kept)
        return kind.options(num_cpus=learner.cpus, num_gpus=learner.resources.get("gpus", 0), resources=custom).remote(
            setup if relay is None else replace(setup, relay=relay)
        )


def setups(
    ray: Any, topology: Topology, dataset: Any, recorder: Any, keeper: Any, beside: Path = Path()
) -> dict[str, Any]:
    """What each learner is made from; the data's splits are put into the object store once."""
    from actors import mach, rbd
    from actors.common import Data
    from learners.batches import shards, take

    def put(split: Any) -> tuple[Any, ...]:
        split.fingerprint  # noqa: B018  computed once, here, and carried along
        return (ray.put(split),)

    private = topology.data.shard == "by_learner"
    parts = shards(len(dataset.train), topology.members, topology.seed) if private else {}
    shared = {name: put(getattr(dataset, name)) for name in ("validation", "test")}
    shared["train"] = () if private else put(dataset.train)
    made: dict[str, Any] = {}
    for name, chosen in topology.members.items():
        refs = dict(shared, train=put(take(dataset.train, parts[name]))) if private else shared
        data = Data(
            **refs,
            private=private,
            width=dataset.width,
            classes=dataset.classes,
            dtype=dataset.train.inputs.dtype.str,
            example=dataset.shape,
            scale=dataset.scale,
            offset=dataset.offset,
        )
        about = {
            "name": name,
            "incarnation": 0,
            "seed": topology.seed,
            "options": chosen,
            "data": data,
            "record": topology.record,
            "mechanics": topology.mechanics,
            "recorder": recorder,
            "keeper": keeper,
            "upload": topology.checkpoint.upload * MEGABYTE,
        }
        if isinstance(chosen, Mach):
            made[name] = mach.Setup(**about, **near(topology, name))
        else:
            made[name] = rbd.Setup(**about, beside=beside)
    return made


def near(topology: Topology, name: str) -> dict[str, Any]:
    """What a learner of kind mach must know of its neighbours."""
    return {
        "children": {child: topology.machs[child].embedding for child in topology.children_of(name)},
        "parents": {parent: topology.machs[parent].batch_size for parent in topology.parents_of(name)},
        "gradient_rows": topology.gradient_rows_of(name),
    }
