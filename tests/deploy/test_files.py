"""The image, the compose file and the Kubernetes manifests: what they promise is written in them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.http.admission import IN_SESSION
from service.ids import new_id
from service.settings import Settings
from tests.paths import ROOT

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
OWN = [name for name in SERVICES if name.startswith("api")]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
BASE = (ROOT / "requirements/base-image.txt").read_text().strip()
MANIFESTS = {each["kind"]: each for each in yaml.safe_load_all((ROOT / "deploy/kubernetes/backpass.yaml").read_text())}
POD = MANIFESTS["StatefulSet"]["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]
SECONDS = {"s": 1, "m": 60}


def settings_of(environment: dict[str, Any]) -> set[str]:
    return {name.removeprefix("BACKPASS_").lower() for name in environment if name.startswith("BACKPASS_")}


def test_the_base_image_is_pinned_by_one_digest() -> None:
    assert re.fullmatch(r"python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", BASE)
    for name in ("api", "api-gpu", "api-1"):
        assert SERVICES[name]["build"]["args"]["PYTHON_IMAGE"] == f"${{PYTHON_IMAGE:-{BASE}}}"
    tag = re.search(r"^ARG PYTHON_IMAGE=(.+)$", DOCKERFILE, re.M)
    assert tag is not None
    assert tag[1] == BASE.partition("@")[0]
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.M)) == {"${PYTHON_IMAGE}", "builder", "base"}


def test_other_images_are_pinned_by_version() -> None:
    for name in set(SERVICES) - set(OWN):
        image = re.sub(r"^\$\{\w+:-(.+)\}$", r"\1", SERVICES[name]["image"])
        assert re.search(r":v?\d+\.\d+", image), image


def test_every_package_of_the_image_has_a_hash_and_the_version_of_the_tests() -> None:
    pinned = {}
    for name in ("image.txt", "docs.txt", "dev.txt"):
        text = (ROOT / "requirements" / name).read_text()
        pinned[name] = dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.M))
        assert text.count("--hash=sha256:") >= len(pinned[name])
    for package, version in {**pinned["image.txt"], **pinned["docs.txt"]}.items():
        assert pinned["dev.txt"].get(package, version) == version, package


def test_the_image_runs_without_pip_as_an_unprivileged_user() -> None:
    base = DOCKERFILE[DOCKERFILE.index(" AS base") :]
    assert "\nUSER 10001:10001\n" in base
    assert "pip" in base[: base.index("USER")]  # removed
    assert "pip install" not in base
    assert "sbom.cdx.json" in DOCKERFILE


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_of_compose_is_restricted(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"].split(":")[0] not in ("0", "root")
    assert "mem_limit" in service
    for port in service.get("ports", ()):
        assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize("name", OWN)
def test_the_environment_of_a_service_has_settings_that_exist_and_leaves_time_to_end(name: str) -> None:
    service = SERVICES[name]

    assert settings_of(service["environment"]) <= set(Settings.model_fields)
    grace = service["stop_grace_period"]
    assert int(grace[:-1]) * SECONDS[grace[-1]] > Settings.model_fields["graceful_shutdown"].default + 2
    assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"])


def test_the_balancer_keeps_the_calls_of_a_session_together() -> None:
    text = (ROOT / "deploy/nginx/backpass.conf").read_text()
    pattern = re.search(r'"~(\^/v1/.+)" \$id;', text)
    assert pattern is not None
    thing = re.compile(pattern[1].replace("(?<id>", "(?P<id>"))

    for kind, prefix in (("sessions", "ses_"), ("tapes", "tap_")):
        id = new_id(prefix)
        for rest in ("", "/steps", "/parameters"):
            found = thing.match(f"/v1/{kind}/{id}{rest}")
            assert found is not None
            assert found["id"] == id
        assert IN_SESSION.match(f"/v1/{kind}/{id}/steps")
    assert thing.match("/v1/sessions") is None
    assert "hash $thing consistent" in text
    assert {f"server {name}:8080" in text for name in ("api-1", "api-2")} == {True}


def test_the_probes_of_kubernetes_ask_for_paths_and_ports_that_exist(client: Any) -> None:
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    config = MANIFESTS["ConfigMap"]["data"]

    assert ports == {"http": 8080, "metrics": int(config["BACKPASS_METRICS_PORT"])}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = CONTAINER[probe]["httpGet"]
        assert asked["port"] in ports
        assert client.get(asked["path"]).status_code == 200
    assert MANIFESTS["Service"]["spec"]["ports"][0]["targetPort"] == "http"


def test_a_pod_is_restricted_and_gets_time_to_end() -> None:
    config = MANIFESTS["ConfigMap"]["data"]

    assert set(MANIFESTS) == {
        "ServiceAccount", "ConfigMap", "StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy",
    }  # fmt: skip
    assert settings_of(config) <= set(Settings.model_fields)
    settings = Settings(**{name.removeprefix("BACKPASS_").lower(): value for name, value in config.items()})
    assert POD["terminationGracePeriodSeconds"] > settings.graceful_shutdown + 2
    assert settings.drain_delay < settings.graceful_shutdown / 2
    assert POD["securityContext"]["runAsNonRoot"]
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not POD["automountServiceAccountToken"]
    assert not POD["enableServiceLinks"]  # else Kubernetes sets BACKPASS_PORT
    mounted = {mount["name"] for mount in CONTAINER["volumeMounts"]}
    volumes = {v["name"] for v in POD["volumes"]}
    claims = {v["metadata"]["name"] for v in MANIFESTS["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    assert mounted == volumes | claims


def test_selectors_choose_the_pods() -> None:
    labels = MANIFESTS["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        MANIFESTS["StatefulSet"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["Service"]["spec"]["selector"],
        MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels.items()
    assert set(MANIFESTS["NetworkPolicy"]["spec"]["policyTypes"]) == {"Ingress", "Egress"}


def test_secrets_are_written_once_into_a_folder_of_their_owner(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    command = [sys.executable, str(ROOT / "deploy/make_secrets.py"), str(folder)]

    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    written = {path.name: path.read_text() for path in folder.iterdir()}
    again = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert again == ""
    assert {path.name: path.read_text() for path in folder.iterdir()} == written
    assert set(written) == set(COMPOSE["secrets"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert written["postgres_password"] in written["backpass_database_url"]
    key = written["api_keys"].strip().rpartition(":")[2]
    assert len(key) > 40
    assert key in first


def test_a_file_of_secrets_sets_what_no_variable_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "backpass_database_url").write_text("postgresql+psycopg://a:b@c/d\n")
    (tmp_path / "backpass_log_level").write_text("error")
    monkeypatch.setenv("BACKPASS_LOG_LEVEL", "debug")

    class FromFiles(Settings):
        model_config = Settings.model_config | {"secrets_dir": tmp_path}

    assert FromFiles().database_url == "postgresql+psycopg://a:b@c/d"
    assert FromFiles().log_level == "debug"


def test_the_image_has_the_guide_and_not_what_builds_it() -> None:
    guide = DOCKERFILE[DOCKERFILE.index(" AS guide") : DOCKERFILE.index(" AS builder")]
    rest = DOCKERFILE[DOCKERFILE.index(" AS builder") :]
    copied = set(re.findall(r"^COPY (.+) \S+$", guide, re.M))
    ignored = (ROOT / ".dockerignore").read_text().splitlines()

    assert "mkdocs" not in rest and "requirements/docs.txt" not in rest
    assert rest.index("COPY --from=guide") < rest.index("install --quiet --no-compile --no-deps")
    for name in " ".join(copied).split():
        assert (ROOT / name).exists()
        assert f"!{name.partition('/')[0]}" in ignored
