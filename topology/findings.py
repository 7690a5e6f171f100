"""What can be wrong with a run of well-typed values: where, and what, in words."""

from collections.abc import Iterable, Set

Finding = tuple[str, str]
"""Key path, message."""

NAMED: dict[str, tuple[tuple[int, ...], int]] = {
    "digits": ((8, 8), 10),
    "mnist": ((28, 28), 10),
    "fashion_mnist": ((28, 28), 10),
    "cifar10": ((32, 32, 3), 10),
}
"""Data sets that are known by name, with the shape of an example and the number of classes."""


class Unfit(ValueError):
    """Options that make no sense together, with this data or with this network; one a line."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        super().__init__(tuple(findings))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """(key path, message) of each."""
        (found,) = self.args
        return tuple(found)

    def __str__(self) -> str:
        return "\n".join(f"{path}: {message}" for path, message in self.findings)


def sound(faulty: Set[str], name: str, *sections: str) -> bool:
    """Whether these sections of a learner are as they were meant; `faulty` as `check.check` has it."""
    return faulty.isdisjoint(f"learners.{name}.{section}" for section in ("kind", *sections))
