"""docs/deploy/compose.yaml and Dockerfile, checked without Docker: the parts fit together and name what exists."""

import importlib
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import neli_router
from neli_router.commands.cli import main
from neli_router.config.resolve import resolve

ROOT = Path(neli_router.__file__).parents[1]
FOLDER = ROOT / "docs" / "deploy"
yaml: Any = importlib.import_module("yaml")
SERVICES = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]
IMAGE = (FOLDER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", IMAGE, flags=re.MULTILINE)


def test_the_agents_environment_is_a_usable_configuration_and_it_has_time_to_hand_over() -> None:
    agent, variables = SERVICES["agent"], dict(word.split("=", 1) for word in shlex.split(instructions("ENV")[0]))
    assert variables.pop("PATH").startswith("/opt/neli/bin:")
    for name, text in agent["environment"].items():
        variables[name] = re.sub(r"\$\{\w+(?::-([\w-]+))?\}", lambda found: found[1] or "word", text)
    resolved = resolve({}, variables, places=())
    assert "postgresql://neli:word@database/jobs?group=jobs" == resolved.config.ledger
    assert float(agent["stop_grace_period"].removesuffix("s")) >= resolved.config.drain_timeout + 10
    assert f"unix:{resolved.agent.socket}" == SERVICES["report"]["environment"]["NELI_AGENT"]
    assert agent["volumes"] == SERVICES["report"]["volumes"] == [f"socket:{Path(resolved.agent.socket).parent}"]
    assert agent["image"] == SERVICES["report"]["image"]


def test_the_job_is_a_command_of_ours() -> None:
    program, *words = SERVICES["report"]["command"]
    assert "neli" == program
    with main.make_context("neli", [*words], resilient_parsing=True) as context:
        command = main.get_command(context, words[0])
        assert command is not None
        command.make_context(words[0], words[1:], parent=context)


def test_the_image_copies_what_is_there_and_installs_extras_that_exist() -> None:
    copied = [word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]]
    assert [] == [name for name in copied if not (ROOT / name).exists()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = [project["project"]["readme"], *project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    assert set(needed) <= set(copied)
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", IMAGE)
    assert {*extras.split(",")} <= project["project"]["optional-dependencies"].keys()
