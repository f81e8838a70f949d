"""The manifests of docs/deploy: they keep the agent's promises, and those of members in pods of one's own."""

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import neli_router
from neli_router.agent.server.sockets import listen_unix
from neli_router.config import Config
from neli_router.errors import NeliError
from neli_router.ledgers.addresses import problems_of
from neli_router.settings.agent_address import Address, distrust
from neli_router.settings.resolve import resolve

FOLDER = Path(neli_router.__file__).parents[1] / "docs" / "deploy"
yaml: Any = importlib.import_module("yaml")

Manifests = dict[tuple[str, str], Any]


def manifests(name: str) -> Manifests:
    return {
        (manifest["kind"], manifest["metadata"]["name"]): manifest
        for manifest in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))
    }


MANIFESTS, GROUP, MEMBERS = map(manifests, ("kubernetes.yaml", "kubernetes-group.yaml", "kubernetes-members.yaml"))
AGENT = MANIFESTS["DaemonSet", "neli-agent"]["spec"]["template"]["spec"]
PROGRAM = MANIFESTS["Deployment", "nightly"]["spec"]["template"]["spec"]
CONTAINER = AGENT["containers"][0]
OF_GROUP = GROUP["DaemonSet", "neli-agent"]["spec"]["template"]["spec"]
OF_MEMBERS = MEMBERS["Deployment", "orders"]["spec"]["template"]["spec"]


def environment(container: Any) -> dict[str, str]:
    """The variables, with something in the place of what Kubernetes fills in."""
    return {
        one["name"]: "10.0.0.7" if "fieldRef" in one.get("valueFrom", {}) else one.get("value", "")
        for one in container["env"]
    }


def mounts(pod: Any) -> dict[str, Any]:
    """Path -> the volume there, for the pod's first container."""
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


def test_graces_are_longer_than_what_they_wait_for() -> None:
    drain_timeout = float(environment(CONTAINER)["NELI_DRAIN_TIMEOUT"])
    assert Config("memory://x").drain_timeout == drain_timeout
    assert drain_timeout + 10 <= AGENT["terminationGracePeriodSeconds"]
    _, seconds = PROGRAM["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert int(seconds) + drain_timeout <= PROGRAM["terminationGracePeriodSeconds"]


def test_readiness_asks_for_the_ledger_and_liveness_does_not() -> None:
    probes = {kind: CONTAINER[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert {"startup": "/health", "readiness": "/ready", "liveness": "/health"} == probes
    assert {"name": "http", "containerPort": 7635} in CONTAINER["ports"]


def test_the_program_finds_the_agents_socket_as_the_agents_user() -> None:
    assert environment(PROGRAM["containers"][0])["NELI_AGENT"] == f"unix:{environment(CONTAINER)['NELI_AGENT_SOCKET']}"
    assert mounts(AGENT)["/run/neli"]["hostPath"]["path"] == mounts(PROGRAM)["/run/neli"]["hostPath"]["path"]
    users = {pod["securityContext"]["runAsUser"] for pod in (AGENT, PROGRAM)}
    assert {10001} == users
    assert f"chown {AGENT['securityContext']['runAsUser']}:" in AGENT["initContainers"][0]["command"][2]
    # And the ledger outlives the pod.
    assert (
        f"sqlite://{mounts(AGENT)['/var/lib/neli']['hostPath']['path']}/ledger.db"
        == environment(CONTAINER)["NELI_LEDGER"]
    )


@pytest.mark.parametrize("pod", [AGENT, PROGRAM, OF_GROUP, OF_MEMBERS], ids=["agent", "program", "group", "members"])
def test_nothing_runs_with_rights_that_it_does_not_need(pod: Any) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    for container in pod["containers"]:
        context = container["securityContext"]
        assert not context["allowPrivilegeEscalation"]
        assert context["readOnlyRootFilesystem"]
        assert {"drop": ["ALL"]} == context["capabilities"]


def test_no_secret_is_written_down() -> None:
    assert not [kind for kind, _ in (*MANIFESTS, *GROUP, *MEMBERS) if kind == "Secret"]
    for pod in (AGENT, OF_GROUP, OF_MEMBERS):
        assert "NELI_TOKEN" not in environment(pod["containers"][0])


def test_selectors_select_what_they_make() -> None:
    for (kind, _), manifest in (*MANIFESTS.items(), *GROUP.items(), *MEMBERS.items()):
        if kind in {"DaemonSet", "Deployment"}:
            labels = manifest["spec"]["template"]["metadata"]["labels"]
            assert labels == manifest["spec"]["selector"]["matchLabels"]
    (labels,) = [MEMBERS["Deployment", "orders"]["spec"]["selector"]["matchLabels"]]
    assert labels == MEMBERS["Service", "orders"]["spec"]["selector"]
    assert labels == MEMBERS["PodDisruptionBudget", "orders"]["spec"]["selector"]["matchLabels"]
    policy = MANIFESTS["NetworkPolicy", "neli-agent"]["spec"]["podSelector"]["matchLabels"]
    assert policy == MANIFESTS["DaemonSet", "neli-agent"]["spec"]["selector"]["matchLabels"]


def test_the_manifests_say_that_this_ledger_serves_one_host_only() -> None:
    text = (FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")
    assert re.search(r"serves one host only.*spans nodes needs a ledger in Kafka or Redis", text.replace("\n# ", " "))
    assert "kubernetes-group.yaml" in text


# A group across nodes


def test_the_groups_environment_is_a_usable_configuration(tmp_path: Path) -> None:
    """With the Secrets as the manifest mounts them, and as its head says that they are made."""
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


# Members in pods of one's own


def of_orders(name: str) -> ast.expr:
    """What orders.py gives to that name."""
    tree = ast.parse((FOLDER / "orders.py").read_text(encoding="utf-8"))
    (found,) = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name
    ]
    return found


def test_the_members_program_gets_what_it_reads_from_its_environment() -> None:
    (container,) = OF_MEMBERS["containers"]
    text = (FOLDER / "orders.py").read_text(encoding="utf-8")
    read = set(re.findall(r"""os\.environ(?:\.get)?[\[(]["'](\w+)["']""", text))
    assert read - {"NELI_LEASE"} == environment(container).keys()
    assert "orders:app" in container["args"]
    assert ["--workers", "1"] == container["args"][container["args"].index("--workers") :][:2]


def test_the_members_ports_and_paths_agree() -> None:
    (container,) = OF_MEMBERS["containers"]
    port = container["args"][container["args"].index("--port") + 1]
    assert port == environment(container)["PORT"]
    assert [{"name": "http", "containerPort": int(port)}] == container["ports"]
    assert "http" == MEMBERS["Service", "orders"]["spec"]["ports"][0]["targetPort"]
    text = (FOLDER / "orders.py").read_text(encoding="utf-8")
    for kind, path in (("startup", "/health"), ("readiness", "/ready"), ("liveness", "/health")):
        assert {"path": path, "port": "http"} == container[f"{kind}Probe"]["httpGet"]
        assert f'Route("{path}"' in text


def test_the_members_have_time_to_leave_before_they_are_killed() -> None:
    (container,) = OF_MEMBERS["containers"]
    linger = ast.literal_eval(of_orders("LINGER"))
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    last = int(container["args"][container["args"].index("--timeout-graceful-shutdown") + 1])
    needed = pause + Config("memory://x").drain_timeout + linger + last
    assert needed + 10 <= OF_MEMBERS["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", ["kubernetes-members.yaml", "kubernetes-group.yaml"])
def test_every_address_in_a_manifest_is_one(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    found = [one for one in re.findall(r"(?:kafka|rediss?)://[^'\"\s]+", text) if "?config=" not in one]
    assert (2 if "members" in name else 0) == len(found)
    assert [] == [problem for address in found for problem in problems_of(address)]
    assert not [one for one in found if "hunter" in one or "PASSWORD" not in one]


def test_an_agent_of_a_pods_own_puts_its_socket_into_a_folder_that_it_makes(tmp_path: Path) -> None:
    """An emptyDir has mode 0777, where the agent puts no socket."""
    tmp_path.chmod(0o777)
    with pytest.raises(NeliError, match="others may write into its folder"), listen_unix(f"{tmp_path}/agent.sock"):
        pass
    with listen_unix(f"{tmp_path}/own/agent.sock"):
        assert "" == distrust(Address(path=f"{tmp_path}/own/agent.sock"))
    assert "NELI_AGENT_SOCKET=/run/neli/own/agent.sock" in (FOLDER / "README.md").read_text(encoding="utf-8")
