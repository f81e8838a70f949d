"""The manifests of docs/deploy: they keep the agent's promises, and those of members in their own pods."""

import importlib
import re
from pathlib import Path
from typing import Any

import neli_router
from neli_router.config.config import Config
from neli_router.config.resolve import resolve
from neli_router.drivers.addresses import problems_of

FOLDER = Path(neli_router.__file__).parents[1] / "docs" / "deploy"
yaml: Any = importlib.import_module("yaml")


def manifests(name: str) -> dict[tuple[str, str], Any]:
    found = yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


MANIFESTS, GROUP, MEMBERS = map(manifests, ("kubernetes.yaml", "kubernetes-group.yaml", "kubernetes-members.yaml"))
AGENT = MANIFESTS["DaemonSet", "neli-agent"]["spec"]["template"]["spec"]
PROGRAM = MANIFESTS["Deployment", "nightly"]["spec"]["template"]["spec"]
CONTAINER = AGENT["containers"][0]
OF_GROUP = GROUP["DaemonSet", "neli-agent"]["spec"]["template"]["spec"]
OF_MEMBERS = MEMBERS["Deployment", "orders"]["spec"]["template"]["spec"]


def environment(container: Any) -> dict[str, str]:
    """The variables, with placeholders for what Kubernetes fills in."""
    told = container["env"]
    return {one["name"]: "10.0.0.7" if "fieldRef" in one.get("valueFrom", {}) else one.get("value", "") for one in told}


def mounts(pod: Any) -> dict[str, Any]:
    """Path -> the volume mounted there, for the pod's first container."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in pod["containers"][0]["volumeMounts"]}


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


def test_graces_are_longer_than_what_they_wait_for_and_only_readiness_asks_for_the_ledger() -> None:
    drain_timeout = float(environment(CONTAINER)["NELI_DRAIN_TIMEOUT"])
    assert Config("memory://x").drain_timeout == drain_timeout
    assert drain_timeout + 10 <= AGENT["terminationGracePeriodSeconds"]
    _, seconds = PROGRAM["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert int(seconds) + drain_timeout <= PROGRAM["terminationGracePeriodSeconds"]
    probes = {kind: CONTAINER[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert {"startup": "/health", "readiness": "/ready", "liveness": "/health"} == probes
    assert {"name": "http", "containerPort": 7635} in CONTAINER["ports"]


def test_the_program_finds_the_agents_socket_as_the_agents_user() -> None:
    assert environment(PROGRAM["containers"][0])["NELI_AGENT"] == f"unix:{environment(CONTAINER)['NELI_AGENT_SOCKET']}"
    assert mounts(AGENT)["/run/neli"]["hostPath"]["path"] == mounts(PROGRAM)["/run/neli"]["hostPath"]["path"]
    assert {10001} == {pod["securityContext"]["runAsUser"] for pod in (AGENT, PROGRAM)}
    assert f"chown {AGENT['securityContext']['runAsUser']}:" in AGENT["initContainers"][0]["command"][2]
    # And the ledger outlives the pod.
    folder = mounts(AGENT)["/var/lib/neli"]["hostPath"]["path"]
    assert f"sqlite://{folder}/ledger.db" == environment(CONTAINER)["NELI_LEDGER"]


def test_nothing_runs_with_rights_that_it_does_not_need_and_no_secret_is_written_down() -> None:
    for pod in (AGENT, PROGRAM, OF_GROUP, OF_MEMBERS):
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        for container in pod["containers"]:
            context = container["securityContext"]
            assert (False, True) == (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"])
            assert {"drop": ["ALL"]} == context["capabilities"]
    assert not [kind for kind, _ in (*MANIFESTS, *GROUP, *MEMBERS) if kind == "Secret"]
    for pod in (AGENT, OF_GROUP, OF_MEMBERS):
        assert "NELI_TOKEN" not in environment(pod["containers"][0])


def test_selectors_select_what_they_make() -> None:
    for (kind, _), manifest in (*MANIFESTS.items(), *GROUP.items(), *MEMBERS.items()):
        if kind in {"DaemonSet", "Deployment"}:
            labels = manifest["spec"]["template"]["metadata"]["labels"]
            assert labels == manifest["spec"]["selector"]["matchLabels"]
    labels = MEMBERS["Deployment", "orders"]["spec"]["selector"]["matchLabels"]
    assert labels == MEMBERS["Service", "orders"]["spec"]["selector"]
    assert labels == MEMBERS["PodDisruptionBudget", "orders"]["spec"]["selector"]["matchLabels"]
    policy = MANIFESTS["NetworkPolicy", "neli-agent"]["spec"]["podSelector"]["matchLabels"]
    assert policy == MANIFESTS["DaemonSet", "neli-agent"]["spec"]["selector"]["matchLabels"]


def test_the_groups_environment_is_a_usable_configuration(tmp_path: Path) -> None:
    """With the Secrets as the manifest mounts them, created as its header describes."""
    (container,) = OF_GROUP["containers"]
    told = environment(container)
    text = (FOLDER / "kubernetes-group.yaml").read_text(encoding="utf-8")
    settings = re.findall(r"^#   ([a-z.]+=.*)$", text, flags=re.MULTILINE)
    contents = {"/etc/neli/ledger/kafka.properties": "\n".join(settings), "/etc/neli/secret/token": "0123456789abcdef"}
    for path, content in contents.items():
        folder, _, name = path.rpartition("/")
        secret = mounts(OF_GROUP)[folder]["secret"]
        place = tmp_path / secret["secretName"]
        place.mkdir()
        (place / name).write_text(content, encoding="utf-8")
        (place / name).chmod(secret["defaultMode"])
        told = {variable: value.replace(path, str(place / name)) for variable, value in told.items()}
    resolved = resolve({}, told, places=())
    assert ("10.0.0.7", "10.0.0.7") == (resolved.config.name, resolved.config.address)
    assert f"kafka://kafka.example:9093/jobs?config={tmp_path}/neli-ledger/kafka.properties" == resolved.config.ledger
    assert 4 == len(settings)
    assert OF_GROUP["securityContext"]["fsGroup"] == OF_GROUP["securityContext"]["runAsGroup"]


def test_the_agents_of_a_group_take_the_place_of_those_of_each_node() -> None:
    """Programs, the policy and Prometheus need no change: what is the same in both is compared as a whole."""
    one, other = MANIFESTS["DaemonSet", "neli-agent"], GROUP["DaemonSet", "neli-agent"]
    assert one["metadata"] == other["metadata"]
    assert one["spec"]["template"]["metadata"] == other["spec"]["template"]["metadata"]
    for field in ("securityContext", "terminationGracePeriodSeconds"):
        assert AGENT[field] == OF_GROUP[field]
    (container,) = OF_GROUP["containers"]
    for field in ("args", "ports", "startupProbe", "readinessProbe", "livenessProbe", "resources", "securityContext"):
        assert CONTAINER[field] == container[field]
    assert environment(CONTAINER)["NELI_AGENT_SOCKET"] == environment(container)["NELI_AGENT_SOCKET"]
    assert mounts(AGENT)["/run/neli"] == mounts(OF_GROUP)["/run/neli"]


def test_the_members_program_gets_what_it_reads_its_ports_and_paths_agree_and_it_has_time_to_leave() -> None:
    (container,) = OF_MEMBERS["containers"]
    text = (FOLDER.parents[1] / "examples" / "orders.py").read_text(encoding="utf-8")
    read = set(re.findall(r"""os\.environ(?:\.get)?[\[(]["'](\w+)["']""", text))
    assert read - {"NELI_LEASE"} == environment(container).keys()
    assert "orders:app" in container["args"]
    given = dict(zip(container["args"], container["args"][1:], strict=False))
    port = given["--port"]
    assert "1" == given["--workers"]
    assert port == environment(container)["PORT"]
    assert [{"name": "http", "containerPort": int(port)}] == container["ports"]
    assert "http" == MEMBERS["Service", "orders"]["spec"]["ports"][0]["targetPort"]
    for kind, path in (("startup", "/health"), ("readiness", "/ready"), ("liveness", "/health")):
        assert {"path": path, "port": "http"} == container[f"{kind}Probe"]["httpGet"]
        assert f'@app.get("{path}")' in text
    (linger,) = re.findall(r"^LINGER = ([\d.]+)", text, flags=re.MULTILINE)
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    last = int(given["--timeout-graceful-shutdown"])
    needed = pause + Config("memory://x").drain_timeout + float(linger) + last
    assert needed + 10 <= OF_MEMBERS["terminationGracePeriodSeconds"]


def test_every_address_in_a_manifest_is_one() -> None:
    for name, count in (("kubernetes-members.yaml", 2), ("kubernetes-group.yaml", 0)):
        text = (FOLDER / name).read_text(encoding="utf-8")
        found = [one for one in re.findall(r"(?:kafka|rediss?)://[^'\"\s]+", text) if "?config=" not in one]
        assert count == len(found)
        assert [] == [problem for address in found for problem in problems_of(address)]
        assert not [one for one in found if "hunter" in one or "PASSWORD" not in one]
