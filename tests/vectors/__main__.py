"""The test vectors: what another implementation of docs/specification.md must compute, too.

    python -m tests.vectors            says which files differ from what this code writes
    python -m tests.vectors --write    writes them

    simulator (fixed seeds), scenes made by hand --> *.ledger.jsonl, *.states.jsonl
    keys, facts, odd lines ------------------------> hashing.jsonl, facts.jsonl, decoding.jsonl

`test_vectors.py` reads the files and does not write any. So a change to the simulator makes other ledgers only with
the next `--write`, and a change to the fold makes the test red.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from neli_router.lab.sim.induction.faults import Faults
from neli_router.lab.sim.induction.group import SimulatedGroup
from neli_router.lab.sim.induction.options import RunOptions, Weather
from neli_router.lab.sim.seed import assemble
from neli_router.lab.sim.world import World
from neli_router.protocols.protocol import Guarantee
from tests.vectors import scenes
from tests.vectors.files import Entries, ledger_lines, state_lines
from tests.vectors.lines import decoding, facts, hashing

__all__ = ["FOLDER", "written"]

FOLDER = Path(__file__).parent

RECORDS_MAX, STATE_EVERY = 240, 48
"""Records of a simulated ledger, and after how many the whole state is written."""

SEEDS: dict[str, tuple[int, Weather, Guarantee]] = {
    "foul-15": (15, "foul", "exclusive"),
    "foul-34": (34, "foul", "exclusive"),
    "rolling-13": (13, "rolling", "exclusive"),
    "available-11": (11, "foul", "available"),
}
"""Among them are loads, zones, graces, upgrades, accusations, certificates and lines that no reader takes."""


def simulated(seed: int, weather: Weather, guarantee: Guarantee) -> tuple[RunOptions, Entries]:
    """The ledger of a group under faults."""
    world = World(seed)
    options = RunOptions.draw(seed, world.random, guarantee=guarantee, weather=weather)
    group = SimulatedGroup(world, options)
    assemble(world, group, options.members, options.lease)
    world.at(3 * options.lease, Faults(world, group, options).begin)
    while len(group.log.offsets) < RECORDS_MAX and world.now < options.leases * options.lease:
        world.run(world.now + options.lease)
    return options, list(zip(group.log.offsets, group.log.payloads, strict=True))[:RECORDS_MAX]


def written() -> Iterator[tuple[str, str]]:
    """The name and the text of each file."""
    yield from (("hashing.jsonl", hashing()), ("facts.jsonl", facts()))
    yield "decoding.jsonl", decoding((FOLDER / "decoding.jsonl").read_text(encoding="utf-8"))
    for name, (scene, every) in scenes.SCENES.items():
        entries = scene()
        yield f"{name}.ledger.jsonl", ledger_lines(entries)
        yield f"{name}.states.jsonl", state_lines(name, scenes.about(scene), entries, every=every)
    for name, drawn in SEEDS.items():
        options, entries = simulated(*drawn)
        yield f"{name}.ledger.jsonl", ledger_lines(entries)
        yield f"{name}.states.jsonl", state_lines(name, f"A simulated group: {options}", entries, every=STATE_EVERY)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vectors", description="The vectors of the specification.")
    parser.add_argument("--write", action="store_true", help="write the files that differ")
    asked = parser.parse_args()
    different = 0
    for name, text in written():
        path = FOLDER / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        different += 1
        sys.stdout.write(f"{'wrote' if asked.write else 'differs:'} {name}\n")
        if asked.write:
            path.write_text(text, encoding="utf-8")
    return 0 if asked.write else min(different, 1)


if __name__ == "__main__":
    sys.exit(main())
