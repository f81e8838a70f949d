"""A life is known by its name, and shown by its secret."""

from random import Random

import pytest

from neli_router.errors import ConfigError
from neli_router.member.witness.base import OwnLife, life_of


def test_a_life_is_known_by_each_of_its_incarnations_and_shown_by_its_secret_alone() -> None:
    life = OwnLife.begin(Random(1))
    assert life.name == life_of(f"{life.name}0000") == life_of(f"{life.name}ffff")
    assert life == OwnLife.shown_by(life.secret)
    assert life.name != OwnLife.shown_by("0" * 32).name
    assert life.secret not in repr(life)


@pytest.mark.parametrize("secret", [None, 7, "", "0" * 31, "0" * 33, "g" * 32, "A" * 32, "\u0661" * 32])
def test_what_is_no_secret_is_refused_without_being_repeated(secret: object) -> None:
    with pytest.raises(ConfigError, match="32 hexadecimal digits, and this is something else"):
        OwnLife.shown_by(secret)
