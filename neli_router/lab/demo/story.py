"""The story: what the demo does to its members, one scene after another.

    start all --> kill -9 one --> start it again --> SIGSTOP one --> SIGCONT it --> SIGTERM one --> SIGTERM the rest
          share         others lead          share         others lead        share          others lead

A scene begins at its share of the time that the user gave, or later, when the previous scene has ended. It ends when
the processes' notes show the expected result. If that takes longer than PATIENCE, the story ends, is reported as
unfinished, and is judged all the same: the checks decide how long something may take.
"""

from collections.abc import Callable, Collection, Sequence
from math import inf
from random import Random

from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.lab.demo.checks import TAKEOVER_LEASES, takeover
from neli_router.lab.demo.scene import Action, ActionKind, Pause, Scene, Unfinished
from neli_router.lab.demo.traffic import LookUpLoop
from neli_router.lab.processes.group import PATIENCE
from neli_router.lab.referee import Life

__all__ = ["MEMBERS_MAX", "NAMES", "Story"]

NAMES = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")
"""Each begins with a different letter, which stands for the member where space is short."""

MEMBERS_MAX = len(NAMES)

STOPPED_ON_LEASES = 2
"""How many leases a stopped member stays stopped after others took over. More makes it clearer that it is too late."""

KILL_AT, RETURN_AT, STOP_AT, LEAVE_AT, END_AT = 0.15, 0.35, 0.50, 0.75, 0.95
"""Where the scenes begin, as fractions of the whole time."""

REST = 0.04
"""The shortest rest between two scenes, also a fraction. Without it, the first scenes merge after a slow start."""


class Story:
    """One run's story. `seconds` is how long it should take; `rng` picks who is killed, stopped and asked to leave."""

    def __init__(self, scene: Scene, names: Sequence[str], config: Config, *, seconds: float, rng: Random) -> None:
        self._scene, self._run, self._config, self._seconds, self._rng = scene, scene.run, config, seconds, rng
        self._names = names
        chosen = rng.sample(names, len(names))
        self._killed, self._stopped, self._leaver = chosen[0], chosen[1], chosen[2 % len(chosen)]

    def tell(self) -> None:
        """Play the whole story. Raises Unfinished, and whatever opening a router raises."""
        self._begin()
        with LookUpLoop(self._config, self._rng, self._run.routed) as traffic:
            self._kill(traffic)
            self._bring_back(traffic)
            self._stop(traffic)
            self._wake(traffic)
            self._leave()
            self._end(traffic)

    # The scenes

    def _begin(self) -> None:
        for name in self._names:
            life = self._scene.start(name)
            self._scene.tell("start", name, f"process {life.pid} starts", at=life.started_at)
        self._await_shares(self._names)

    def _kill(self, traffic: LookUpLoop) -> None:
        self._await(lambda: bool(self._run.routed.samples), lambda: "keys were to be routed, but none was")
        shown = ", ".join(f"{key} -> {name}" for key, name in self._run.routed.samples.items())
        self._scene.tell("route", "all", f"from now on, keys are routed: {shown}, ...")
        self._await_scene(KILL_AT)
        traffic.absent[self._killed] = host_clock()
        action = self._do(ActionKind.KILL, self._killed, "kill -9: process {pid} was killed")
        self._await_takeover(action)

    def _bring_back(self, traffic: LookUpLoop) -> None:
        self._await_scene(RETURN_AT)
        del traffic.absent[self._killed]
        life = self._scene.start(self._killed)
        self._scene.tell("start", life.name, f"comes back under its own name: process {life.pid}", at=life.started_at)
        self._await_shares(self._names)

    def _stop(self, traffic: LookUpLoop) -> None:
        self._await_scene(STOP_AT)
        traffic.absent[self._stopped] = host_clock()
        action = self._do(ActionKind.STOP, self._stopped, "SIGSTOP: process {pid} stands still")
        self._await_takeover(action)
        # Long enough to show that the member did not just seem to be gone.
        self._scene.wait(lambda: False, STOPPED_ON_LEASES * self._run.lease)

    def _wake(self, traffic: LookUpLoop) -> None:
        del traffic.absent[self._stopped]
        self._do(ActionKind.WAKE, self._stopped, "SIGCONT: process {pid} runs again, and knows nothing of all this")
        self._await_shares(self._names)

    def _leave(self) -> None:
        self._await_scene(LEAVE_AT)
        action = self._do(ActionKind.LEAVE, self._leaver, "SIGTERM: process {pid} is asked to leave")
        self._await_takeover(action)
        self._await_shares([name for name in self._names if name != self._leaver])
        self._await_end([action.life])

    def _end(self, traffic: LookUpLoop) -> None:
        self._await_scene(END_AT)
        traffic.end()  # From here on, fewer and fewer keys have an owner, as expected.
        last = self._run.living
        for life in last:
            self._do(ActionKind.LEAVE, life.name, "SIGTERM: process {pid} is asked to leave")
        self._await_end(last)
        self._await(lambda: bool(traffic.refusal()), lambda: "a look-up was to raise NoOwner, but still names a member")
        self._scene.tell("route", "all", f"no member is left, and a look-up raises {traffic.refusal()}")

    # Their parts

    def _do(self, kind: ActionKind, name: str, what: str) -> Action:
        action = self._scene.do(kind, name)
        led = f"; it led {len(action.took)} partitions" if kind is not ActionKind.WAKE else ""
        self._scene.tell(kind.name.lower(), name, what.format(pid=action.life.pid) + led, at=action.at)
        return action

    def _await_scene(self, at: float) -> None:
        begins_at = self._run.started_at + at * self._seconds
        self._scene.wait(lambda: False, max(begins_at - host_clock(), REST * self._seconds))

    def _await_shares(self, names: Collection[str]) -> None:
        self._await(
            lambda: self._scene.is_shared_by(names),
            lambda: (
                f"{', '.join(names)} were to share {self._run.partitions} partitions, but what they lead is: "
                f"{self._shares() or 'nothing'}{self._last_words()}"
            ),
        )
        self._run.pauses.append(Pause(host_clock(), tuple(names)))
        self._scene.tell("share", "all", f"{self._run.partitions} partitions are shared: {self._shares()}")

    def _await_takeover(self, action: Action) -> None:
        self._await(
            lambda: takeover(self._run, action) < inf,
            lambda: (
                f"the {len(action.took)} partitions of {action.life.name} were to be led by others, "
                f"but what these lead is: {self._shares()}"
            ),
        )
        took = takeover(self._run, action)
        leases = took / self._run.lease
        text = f"all {len(action.took)} are led by others {took * 1000:.0f} ms later ({leases:.2f} x the lease)"
        self._scene.tell("lead", "all", text, at=action.at + took)

    def _await_end(self, lives: Sequence[Life]) -> None:
        self._await(
            lambda: all(map(self._scene.has_ended, lives)),
            lambda: f"{', '.join(life.name for life in lives)} were to end their processes, but did not all do so",
        )

    def _await(self, awaited: Callable[[], bool], otherwise: Callable[[], str]) -> None:
        patience = PATIENCE + TAKEOVER_LEASES * self._run.lease
        if not self._scene.wait(awaited, patience):
            raise Unfinished(f"within {patience:g} s, {otherwise()}")

    def _shares(self) -> str:
        lives = sorted(self._run.living, key=lambda life: life.name)
        return ", ".join(f"{life.name} {len(life.held)}" for life in lives)

    def _last_words(self) -> str:
        """The end of the log of a member that leads nothing: it is likely to say why."""
        idle = (life for life in self._run.living if not life.held)
        words = ((life.name, self._scene.last_words(life)) for life in idle)
        return next((f"; last in the log of {name}: {said}" for name, said in words if said), "")
