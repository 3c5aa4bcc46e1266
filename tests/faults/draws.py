"""Which faults are tried: 25 chosen ones in `make test`; in `make faults`, as many as are asked for, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from faults.commands import COMMANDS, Command
from faults.kinds import KINDS, Kind

# The faults of every test session: of every kind, the commands that it happens to and the seeds; kinds that are not listed
# take too long. These seeds draw file operations, not seconds: the same faults happen on every machine.
CHOSEN = {
    "kill": {"train": 3, "resume": 1, "retrain": 2, "curve": 3},
    "term": {"train": 6, "finetune": 2},
    "int": {"resume": 6, "compress": 1},
    "full disk": {"train": 3, "resume": 6, "compress": 3},
    "read-only": {"train": 0, "curve": 1},
    "truncate": {"resume": 0, "finetune": 1},
    "flip": {"train again": 0, "resume": 0, "compress": 1},
    "swap": {"resume": 0, "curve": 1},
    "deleted data": {"resume": 0},
    "changed data": {"curve": 0},
    "clock": {"resume": 6},
    "second process": {"train": 5, "compress": 3},
}


@dataclass(frozen=True)
class Fault:
    """A kind of fault, a command that it happens to, and the seed of its moment and its place."""

    kind: Kind
    command: Command
    seed: int

    def __str__(self) -> str:
        return f"{self.kind.name}, {self.command.name}, {self.seed}".replace(" ", "-").replace(",-", ":")

    @property
    def chance(self) -> random.Random:
        return random.Random(str(self))


def pairs() -> list[tuple[Kind, Command]]:
    """Return every kind with every command that it can happen to."""
    return [(kind, COMMANDS[name]) for kind in KINDS.values() for name in kind.commands]


def drawn_faults(count: int, seed: int) -> list[Fault]:
    """Draw faults: all pairs of a kind and a command occur equally often, but for one."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    while len(faults) < count:
        some = pairs()
        chance.shuffle(some)
        faults += [Fault(kind, command, seed * 1000 + len(faults) + i) for i, (kind, command) in enumerate(some)]
    return faults[:count]


def chosen_faults() -> list[Fault]:
    """Return the faults of every test session: 25, of all kinds but those that take longest."""
    return [
        Fault(KINDS[kind], COMMANDS[command], seed)
        for kind, commands in CHOSEN.items()
        for command, seed in commands.items()
    ]
