"""docs/deploy/kubernetes.yaml: its manifests keep the agent's promises."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import neli_router
from neli_router.config import Config
from neli_router.settings.resolve import resolve

FOLDER = Path(neli_router.__file__).parents[1] / "docs" / "deploy"
yaml: Any = importlib.import_module("yaml")

MANIFESTS: dict[tuple[str, str], Any] = {
    (manifest["kind"], manifest["metadata"]["name"]): manifest
    for manifest in yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
}
AGENT = MANIFESTS["DaemonSet", "neli-agent"]["spec"]["template"]["spec"]
PROGRAM = MANIFESTS["Deployment", "nightly"]["spec"]["template"]["spec"]
CONTAINER = AGENT["containers"][0]


def environment(container: Any) -> dict[str, str]:
    """The variables, with something in the place of what Kubernetes fills in."""
    return {one["name"]: one.get("value", "10.0.0.7") for one in container["env"]}


def mounted(pod: Any, path: str) -> Any:
    """The volume that the pod's first container has at `path`."""
    name = next(mount["name"] for mount in pod["containers"][0]["volumeMounts"] if mount["mountPath"] == path)
    return next(volume for volume in pod["volumes"] if volume["name"] == name)


def test_the_agents_environment_is_a_usable_configuration(tmp_path: Path) -> None:
    told = environment(CONTAINER)
    assert AGENT["volumes"][2]["secret"]["secretName"] == "neli-token"
    assert told["NELI_TOKEN_FILE"].startswith("/etc/neli/secret/")
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(AGENT["volumes"][2]["secret"]["defaultMode"])
    resolved = resolve({}, {**told, "NELI_TOKEN_FILE": str(token)}, places=())
    assert ("/run/neli/agent.sock", "0.0.0.0:7635") == (resolved.agent.socket, resolved.agent.listen)
    assert resolved.agent.allow_remote
    assert {"NELI_NAME", "POD_NAME", "POD_IP"} <= told.keys()


def test_kubernetes_waits_for_longer_than_the_agent_drains() -> None:
    drain_timeout = float(environment(CONTAINER)["NELI_DRAIN_TIMEOUT"])
    assert Config("memory://x").drain_timeout == drain_timeout
    assert drain_timeout + 10 <= AGENT["terminationGracePeriodSeconds"]


def test_the_programs_grace_has_room_for_its_pause_and_its_work() -> None:
    _, seconds = PROGRAM["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    drain_timeout = float(environment(CONTAINER)["NELI_DRAIN_TIMEOUT"])
    assert int(seconds) + drain_timeout <= PROGRAM["terminationGracePeriodSeconds"]


def test_readiness_asks_for_the_ledger_and_liveness_does_not() -> None:
    probes = {kind: CONTAINER[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert {"startup": "/health", "readiness": "/ready", "liveness": "/health"} == probes
    assert {"name": "http", "containerPort": 7635} in CONTAINER["ports"]


def test_the_program_finds_the_agents_socket_as_the_agents_user() -> None:
    assert environment(PROGRAM["containers"][0])["NELI_AGENT"] == f"unix:{environment(CONTAINER)['NELI_AGENT_SOCKET']}"
    assert mounted(AGENT, "/run/neli")["hostPath"]["path"] == mounted(PROGRAM, "/run/neli")["hostPath"]["path"]
    users = {pod["securityContext"]["runAsUser"] for pod in (AGENT, PROGRAM)}
    assert {10001} == users
    assert f"chown {AGENT['securityContext']['runAsUser']}:" in AGENT["initContainers"][0]["command"][2]


def test_the_ledger_outlives_the_pod() -> None:
    folder = mounted(AGENT, "/var/lib/neli")["hostPath"]["path"]
    assert f"sqlite://{folder}/ledger.db" == environment(CONTAINER)["NELI_LEDGER"]


@pytest.mark.parametrize("pod", [AGENT, PROGRAM], ids=["agent", "program"])
def test_nothing_runs_with_rights_that_it_does_not_need(pod: Any) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    for container in pod["containers"]:
        context = container["securityContext"]
        assert not context["allowPrivilegeEscalation"]
        assert context["readOnlyRootFilesystem"]
        assert {"drop": ["ALL"]} == context["capabilities"]


def test_no_secret_is_written_down() -> None:
    assert not [kind for kind, _ in MANIFESTS if kind == "Secret"]
    assert "NELI_TOKEN" not in environment(CONTAINER)


def test_selectors_select_what_they_make() -> None:
    for (kind, _), manifest in MANIFESTS.items():
        if kind in {"DaemonSet", "Deployment"}:
            labels = manifest["spec"]["template"]["metadata"]["labels"]
            assert labels == manifest["spec"]["selector"]["matchLabels"]
    policy = MANIFESTS["NetworkPolicy", "neli-agent"]["spec"]["podSelector"]["matchLabels"]
    assert policy == MANIFESTS["DaemonSet", "neli-agent"]["spec"]["selector"]["matchLabels"]


def test_the_manifests_say_that_this_ledger_serves_one_host_only() -> None:
    text = (FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")
    assert re.search(r"serves one host only.*spans nodes needs a ledger in Kafka or Redis", text.replace("\n# ", " "))
