"""The proof of the shipped protocol: explored completely within small bounds, simulated under faults beyond them."""

import subprocess
import sys

import pytest

SECONDS_MAX = 3000
"""Many times what it takes alone on a machine with two cores."""

# pytest's own bound, which is for tests that hang, would end a proof that is merely slow.
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(SECONDS_MAX + 60)]


def neli(*arguments: str) -> list[str]:
    """What `neli` prints. A process of its own gives back the memory of three million worlds at once."""
    program = "import sys; from neli_router.cli import main; sys.argv[0] = 'neli'; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr
    return done.stdout.splitlines()


def test_two_incarnations_whose_readers_are_two_records_apart_break_no_rule_in_any_reachable_world() -> None:
    lines = neli("explore", "--profile", "test")
    assert "explore: 2 incarnations at once, 1 partition, readers at most 2 records apart, lease 2 ticks" in lines[0]
    assert lines[-1].startswith("  complete: ")


@pytest.mark.parametrize("protocol", ["neli", "fast-neli"])
def test_two_members_of_a_borrowed_group_break_no_rule_in_any_world_within_the_quick_bounds(protocol: str) -> None:
    lines = neli("explore", "--protocol", protocol, "--profile", "test")
    bounds = [line for line in lines if line.startswith("explore: ")]
    assert bounds[0].startswith(f"explore: {protocol}, exclusive: 2 members, 1 partition, ")
    assert len(bounds) == sum(line.startswith(("  complete: ", "  as far as it came: ")) for line in lines)


def test_three_electors_that_keep_their_term_break_no_rule_in_any_world_within_the_quick_bounds() -> None:
    lines = neli("explore", "--protocol", "term", "--profile", "test")
    bounds = [line for line in lines if line.startswith("explore: ")]
    assert all(line.startswith("explore: term: 3 electors, ") for line in bounds)
    assert len(bounds) == sum(line.startswith("  complete: ") for line in lines)


def test_electors_that_gossip_break_no_rule_in_any_world_within_the_quick_bounds() -> None:
    lines = neli("explore", "--protocol", "gossip", "--profile", "test")
    bounds = [line for line in lines if line.startswith("explore: gossip: ")]
    assert [3] * 2 == [len(bounds), sum(line.startswith("  complete: ") for line in lines)]


FURTHER = (
    "--slots 2 --apart 2 --lease 1",
    "--slots 3 --births 3 --apart 1 --lease 1 --no-leave",
    "--protocol neli --error 0 --no-leave --no-crash",
    "--protocol term --terms 2 --states 40000",
    "--protocol term --terms 2 --no-cede --restarts 1 --states 40000",
    "--protocol term --terms 3 --no-cede --states 40000",
    "--protocol gossip --terms 2 --lease 1",
    "--protocol gossip --terms 2 --lease 1 --changes 1 --separate --states 60000",
    "--protocol gossip --terms 2 --lease 1 --changes 1 --restarts 1 --states 60000",
    "--protocol gossip --terms 2 --lease 1 --restarts 1 --states 90000",
)


@pytest.mark.parametrize("bounds", FURTHER)
def test_no_rule_is_broken_beyond_the_quick_bounds_either(bounds: str) -> None:
    lines = neli("explore", *bounds.split())
    assert lines[-1].startswith(("  complete: ", "  as far as it came: "))


@pytest.mark.parametrize(
    "seeds",
    [
        "--seeds 500",
        "--guarantee exclusive --weather fair --seeds 64",
        "--guarantee exclusive --weather foul --seeds 60",
        "--guarantee exclusive --weather foul --start 220 --seeds 60",
        "--guarantee exclusive --weather slow --seeds 20",
        "--weather rewound --seeds 150",
        "--protocol neli --guarantee exclusive --weather fair --seeds 60",
        "--protocol neli --guarantee exclusive --weather foul --seeds 100",
        "--protocol neli --guarantee exclusive --weather beyond --seeds 100",
        "--protocol neli --guarantee available --weather fair --seeds 100",
        "--protocol fast-neli --weather fair --seeds 100",
    ],
)
def test_groups_under_faults_keep_every_promise(seeds: str) -> None:
    lines = neli("simulate", *seeds.split())
    assert any(line.startswith("simulate: ") and ": every promise held" in line for line in lines)
