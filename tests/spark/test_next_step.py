"""Which step comes next: the partitions that are furthest behind catch up first, and then all go on together."""

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from neli_router.spark.steps import InputStep, next_step


@pytest.mark.parametrize(
    ("progress", "tips", "longest", "expected"),
    [
        ({0: 0, 1: 0, 2: 0}, [1], 1, InputStep(0, 0, 1, (0, 1, 2))),
        ({0: 0, 1: 0, 2: 0}, [9], 1, InputStep(0, 0, 1, (0, 1, 2))),
        ({0: 0, 1: 0, 2: 0}, [9], 5, InputStep(0, 0, 5, (0, 1, 2))),
        ({0: 0, 1: 0, 2: 0}, [3], 5, InputStep(0, 0, 3, (0, 1, 2))),
        ({0: 5, 1: 5, 2: 3}, [6], 9, InputStep(0, 3, 5, (2,))),
        ({0: 5, 1: 5, 2: 5}, [6], 9, InputStep(0, 5, 6, (0, 1, 2))),
        ({0: 6, 1: 5, 2: 3}, [6], 1, InputStep(0, 3, 4, (2,))),
        ({0: 6, 1: 6}, [6], 9, None),
        ({0: 7, 1: 6}, [6], 9, None),
        ({}, [6], 9, None),
        # Two lanes: even partitions in lane 0, odd ones in lane 1; the lane that is further behind goes first.
        ({0: 10, 1: 3, 2: 10, 3: 4}, [20, 30], 100, InputStep(1, 3, 4, (1,))),
        ({0: 10, 1: 30, 2: 12, 3: 30}, [20, 30], 100, InputStep(0, 10, 12, (0,))),
        ({1: 5, 3: 5}, [99, 5], 100, None),
    ],
)
def test_the_furthest_behind_goes_first_up_to_where_the_next_ones_are(
    progress: Mapping[int, int], tips: Sequence[int], longest: int, expected: InputStep | None
) -> None:
    assert expected == next_step(progress, tips, longest=longest)


@pytest.mark.parametrize("seed", range(20))
def test_steps_bring_every_partition_to_its_tip_without_a_gap_or_a_repetition(seed: int) -> None:
    random = Random(seed)
    tips = [random.randrange(30) for _ in range(random.randint(1, 3))]
    progress = {it: random.randrange(tips[it % len(tips)] + 1) for it in range(random.randint(1, 8))}
    taken = 0
    while (step := next_step(progress, tips, longest=random.randint(1, 10))) is not None:
        assert step.after < step.upto <= tips[step.lane]
        for partition in step.partitions:
            assert (step.lane, step.after) == (partition % len(tips), progress[partition])
            progress[partition] = step.upto
        taken += 1
        assert taken < 1000
    assert {it: tips[it % len(tips)] for it in progress} == progress
