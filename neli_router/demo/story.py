"""The story: what the demo does to its members, one scene after another.

    start all --> kill -9 one --> start it again --> SIGSTOP one --> SIGCONT it --> SIGTERM one --> SIGTERM the rest
          share         others lead          share         others lead        share          others lead

A scene begins at its place in the time that the user gave, or when the one before has come to its end, whichever is
later. It ends when the workers' notes show what was awaited. What does not come within PATIENCE ends the story, which
is then told as unfinished, and is judged all the same.
"""

from collections.abc import Callable, Collection, Sequence
from random import Random

from neli_router.clock import host_clock
from neli_router.demo.checks import TAKEOVER_LEASES, takeover
from neli_router.demo.notes import Order
from neli_router.demo.record import Deed, DeedKind, Life, Pause, Phase
from neli_router.demo.stage import Stage, Unfinished, milliseconds
from neli_router.demo.traffic import Traffic, keys
from neli_router.demo.worker import config_of

__all__ = ["MEMBERS_MAX", "NAMES", "Story"]

NAMES = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")
"""Each begins with a letter of its own, which stands for the member where there is room for no more."""

MEMBERS_MAX = len(NAMES)

PATIENCE = 20.0
"""How long the story waits for anything, in seconds, on top of as many leases as a takeover may take. It is there for
what went wrong for good; how long something may rightly take is for the checks to say."""

STOPPED_ON_LEASES = 2
"""For how many leases the stopped one stays so after others took over. More shows better that it is too late."""

KILL_AT, RETURN_AT, STOP_AT, LEAVE_AT, END_AT = 0.15, 0.35, 0.50, 0.75, 0.95
"""Where the scenes begin, as parts of the whole time."""

REST = 0.04
"""The shortest rest between two scenes, as such a part. Without it, after a slow start the first would run together."""


class Story:
    """One run's. `seconds` is how long it should take, and `rng` decides who is killed, stopped and asked to leave."""

    def __init__(self, stage: Stage, orders: Sequence[Order], *, seconds: float, rng: Random) -> None:
        self._stage, self._run, self._seconds, self._rng = stage, stage.run, seconds, rng
        self._orders = {order.name: order for order in orders}
        chosen = rng.sample(list(self._orders), len(orders))
        self._killed, self._stopped, self._leaver = chosen[0], chosen[1], chosen[2 % len(chosen)]

    def tell(self) -> None:
        """All of it. Raises Unfinished, and what opening a router raises."""
        self._begin()
        order = self._orders[self._killed]
        with Traffic(config_of(order), keys(self._rng), self._run.routed) as traffic:
            self._kill(traffic)
            self._bring_back(traffic)
            self._stop(traffic)
            self._wake(traffic)
            self._leave()
            self._end(traffic)

    # The scenes

    def _begin(self) -> None:
        for order in self._orders.values():
            life = self._stage.start(order)
            self._stage.tell("start", order.name, f"process {life.pid} starts", at=life.started_at)
        self._await_shares(self._orders)

    def _kill(self, traffic: Traffic) -> None:
        self._await(lambda: bool(self._run.routed.samples), lambda: "keys were to be routed, but none was")
        shown = ", ".join(f"{key} -> {name}" for key, name in self._run.routed.samples.items())
        self._stage.tell("route", "all", f"from now on, keys are routed: {shown}, ...")
        self._await_scene(KILL_AT)
        traffic.absent[self._killed] = host_clock()
        deed = self._do(DeedKind.KILL, self._killed, Phase.KILLED, "kill -9: process {pid} is no more")
        self._await_takeover(deed)

    def _bring_back(self, traffic: Traffic) -> None:
        self._await_scene(RETURN_AT)
        del traffic.absent[self._killed]
        life = self._stage.start(self._orders[self._killed])
        self._stage.tell("start", life.name, f"comes back under its own name: process {life.pid}", at=life.started_at)
        self._await_shares(self._orders)

    def _stop(self, traffic: Traffic) -> None:
        self._await_scene(STOP_AT)
        traffic.absent[self._stopped] = host_clock()
        deed = self._do(DeedKind.STOP, self._stopped, Phase.STOPPED, "SIGSTOP: process {pid} stands still")
        self._await_takeover(deed)
        # Long enough for everybody to see that it not only seems to be gone.
        self._stage.wait(lambda: False, STOPPED_ON_LEASES * self._run.lease)

    def _wake(self, traffic: Traffic) -> None:
        del traffic.absent[self._stopped]
        what = "SIGCONT: process {pid} runs again, and knows nothing of all this"
        self._do(DeedKind.WAKE, self._stopped, Phase.MEMBER, what)
        self._await_shares(self._orders)

    def _leave(self) -> None:
        self._await_scene(LEAVE_AT)
        deed = self._do(DeedKind.LEAVE, self._leaver, Phase.LEAVING, "SIGTERM: process {pid} is asked to leave")
        self._await_takeover(deed)
        self._await_shares([name for name in self._orders if name != self._leaver])
        self._await_end([deed.life])

    def _end(self, traffic: Traffic) -> None:
        self._await_scene(END_AT)
        traffic.end()  # From here on, there is less and less to be found, and that is as it should be.
        last = self._run.living
        for life in last:
            self._do(DeedKind.LEAVE, life.name, Phase.LEAVING, "SIGTERM: process {pid} is asked to leave")
        self._await_end(last)
        self._await(
            lambda: bool(traffic.refusal()), lambda: "a look-up was to raise NoOwner, but it goes on naming who left"
        )
        self._stage.tell("route", "all", f"nobody is left, and a look-up raises {traffic.refusal()}")

    # What they are made of

    def _do(self, kind: DeedKind, name: str, phase: Phase, what: str) -> Deed:
        life = self._run.latest(name)
        deed = self._stage.do(kind, life, phase)
        led = f"; it led {len(deed.took)} partitions" if phase is not Phase.MEMBER else ""
        self._stage.tell(kind.name.lower(), name, what.format(pid=life.pid) + led, at=deed.at)
        return deed

    def _await_scene(self, at: float) -> None:
        begins_at = self._run.started_at + at * self._seconds
        self._stage.wait(lambda: False, max(begins_at - host_clock(), REST * self._seconds))

    def _await_shares(self, names: Collection[str]) -> None:
        self._await(
            lambda: self._stage.is_shared_by(names),
            lambda: (
                f"{', '.join(names)} were to share {self._run.partitions} partitions, but what they lead is: "
                f"{self._shares() or 'nothing'}{self._last_words()}"
            ),
        )
        self._run.pauses.append(Pause(host_clock(), tuple(names)))
        self._stage.tell("share", "all", f"{self._run.partitions} partitions are shared: {self._shares()}")

    def _await_takeover(self, deed: Deed) -> None:
        self._await(
            lambda: self._stage.led_again(deed),
            lambda: (
                f"the {len(deed.took)} partitions of {deed.life.name} were to be led by others, but what these lead "
                f"is: {self._shares()}"
            ),
        )
        took = takeover(self._run, deed)
        leases = took / self._run.lease
        text = f"all {len(deed.took)} are led by others {milliseconds(took)} later ({leases:.2f} x the lease)"
        self._stage.tell("lead", "all", text, at=deed.at + took)

    def _await_end(self, lives: Sequence[Life]) -> None:
        self._await(
            lambda: all(map(self._stage.has_ended, lives)),
            lambda: f"{', '.join(life.name for life in lives)} were to end their processes, but did not all do so",
        )

    def _await(self, awaited: Callable[[], bool], otherwise: Callable[[], str]) -> None:
        patience = PATIENCE + TAKEOVER_LEASES * self._run.lease
        if not self._stage.wait(awaited, patience):
            raise Unfinished(f"within {patience:g} s, {otherwise()}")

    def _shares(self) -> str:
        lives = sorted(self._run.living, key=lambda life: life.name)
        return ", ".join(f"{life.name} {len(life.held)}" for life in lives)

    def _last_words(self) -> str:
        """What is in the log of one that leads nothing, which is likely to say why."""
        idle = (life for life in self._run.living if not life.held)
        words = ((life.name, self._stage.last_words(life)) for life in idle)
        return next((f"; last in the log of {name}: {said}" for name, said in words if said), "")
