"""The store through which processes find each other, free of what the killed processes of an earlier attempt left in it."""

from __future__ import annotations

import time
import uuid

from torch.distributed import PrefixStore, Store
from torch.distributed.constants import default_pg_timeout
from torch.distributed.rendezvous import rendezvous

_SECONDS_BETWEEN_LOOKS = 0.02


def fresh_store() -> tuple[Store, int, int]:
    """Return a store that the living processes of this job share, the rank of this one, and their number.

    torchrun keeps its store when it restarts processes, with the addresses of the dead ones: who reads those connects to nobody,
    or waits for half an hour. Restart counts cannot tell attempts apart, since those of several machines may differ.
    """
    store, rank, world = next(rendezvous("env://"))
    return PrefixStore(agreed_attempt(store, rank, world), store), rank, world


def agreed_attempt(store: Store, rank: int, world: int) -> str:
    """Return a name of this attempt on which all living processes agree, whatever dead ones wrote into the store.

    The first process proposes a new name, and lists who has answered to it; the others answer proposals until one lists them.
    """
    me = uuid.uuid4().hex
    if rank == 0:
        store.set("attempt", me)
        answers = [store.get(f"{me}/{other}").decode() for other in range(1, world)]  # waits for each
        store.set(f"{me}/members", " ".join(answers))
        return me
    deadline = time.monotonic() + default_pg_timeout.total_seconds()
    while time.monotonic() < deadline:
        proposed = store.get("attempt").decode()  # waits for the first one
        store.set(f"{proposed}/{rank}", me)
        members = f"{proposed}/members"
        if store.check([members]) and me in store.get(members).decode():
            return proposed
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    raise TimeoutError(f"process {rank}: the first process has not answered for {default_pg_timeout}")
