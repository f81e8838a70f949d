"""Why a member does not lead a partition, in words for whoever waits for it.

    ledger out of reach > not a member yet > ours, but not led > somebody else's

The first that applies is told: what stands further left explains what stands right of it.
"""

from collections.abc import Mapping

from neli_router.induction.fold import State
from neli_router.member.barrier import Grant, GrantState

__all__ = ["why_not"]

_BY_STATE: Mapping[GrantState, str] = {
    GrantState.QUEUED: "this member owns it, and its handler of events is busy with others",
    GrantState.PREPARING: "this member owns it, and its handler of Acquired has not returned",
    GrantState.FINISHING: "this member is giving it to another one",
}


def why_not(state: State, me: str, partition: int, grant: Grant | None, obstacle: str) -> str:
    """`me` is the member's incarnation, `obstacle` what keeps it from the ledger, if anything."""
    if obstacle:
        return f"the ledger is out of reach ({obstacle})"
    if me not in state.seats:
        return "this member was not admitted to the group yet, for which it must first have read along for a lease"
    if grant is not None and grant.state in _BY_STATE:
        return _BY_STATE[grant.state]
    owner = state.owners[partition]
    if owner == me:
        return "this member owns it, and waits for its own heartbeat, or for the end of its predecessor's lease"
    name = "nobody" if owner is None else state.seats[owner].name
    coming = ", and is to give it to this member" if state.targets[partition] == me else ""
    return f"{name} owns it under term {state.terms[partition]}{coming}"
