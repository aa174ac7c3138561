"""The dashboard, the alert rules and the scrape configuration in deploy/ fit the metrics of the service."""

from __future__ import annotations

import asyncio
import json
import random
import re
import string
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.app import create_app
from service.settings import Settings
from tests.deploy.promql import read
from tests.paths import ROOT
from tests.service.wire import opened, regression, tensors

DASHBOARD = json.loads((ROOT / "deploy/grafana/backpass.json").read_text())
RULES = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
SCRAPES = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
QUERIES = {
    **{f"{title} {t['refId']}": t["expr"] for title, panel in PANELS.items() for t in panel["targets"]},
    **{rule["alert"]: rule["expr"] for rule in RULES},
}
OF_PROMETHEUS = {"up"}
TARGETS = {"job", "instance"}
"""Labels that Prometheus adds to every series."""

KINDS = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}


@pytest.fixture(scope="module")
def known(service: Any) -> dict[str, set[str] | None]:
    """Series name -> its labels; None if the service has no sample of it yet."""
    sketch = regression()
    feeds = tensors({name: sketch.values[name] for name in ("x", "y")})
    with opened(service.client, sketch) as session:
        service.client.post(f"{session}/steps", json={"feeds": feeds})
        service.client.post(f"{session}/steps", json={"feeds": {}})
        page = service.client.get("/metrics").text
    found: dict[str, set[str] | None] = {}
    for family in text_string_to_metric_families(page):
        for suffix in KINDS[family.type]:
            found[family.name + suffix] = None
        for sample in family.samples:
            labels = found.get(sample.name) or set()
            found[sample.name] = labels | set(sample.labels)
    return found


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_has_the_form_of_promql_and_uses_metrics_and_labels_that_exist(
    known: dict[str, set[str] | None], name: str
) -> None:
    query = read(QUERIES[name])

    assert query.metrics
    assert query.metrics <= known.keys() | OF_PROMETHEUS
    for metric, labels in query.labels.items():
        existing = known.get(metric)
        if existing is not None:
            assert labels <= existing | TARGETS, metric


@pytest.mark.parametrize(
    "wrong",
    [
        "sum(rate(a[5m])", "rate(a)", "a[5m]", "a{b=c}", "a{b='c'}", "sum by a (b)", "a b",
        "histogram_quantile(0.9, a[5m])", "1 +", "a{b}", "a[5]", "unknown_function(a)",
    ],
)  # fmt: skip
def test_a_query_of_another_form_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(wrong)


def test_every_alert_has_a_severity_a_summary_and_a_section_in_the_documentation() -> None:
    page = (ROOT / "docs/operations.md").read_text()

    assert len(RULES) >= 8
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert re.search(rf"^\| `{rule['alert']}` \|", page, re.M), rule["alert"]


def test_panels_have_their_own_place_and_number() -> None:
    panels = DASHBOARD["panels"]
    places = {
        (x, y)
        for each in panels
        for x in range(each["gridPos"]["x"], each["gridPos"]["x"] + each["gridPos"]["w"])
        for y in range(each["gridPos"]["y"], each["gridPos"]["y"] + each["gridPos"]["h"])
    }

    assert len({each["id"] for each in panels}) == len(panels)
    assert len(places) == sum(each["gridPos"]["w"] * each["gridPos"]["h"] for each in panels)
    assert max(x for x, _ in places) < 24


def test_prometheus_scrapes_the_port_for_metrics_of_every_service_in_compose() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    scraped = SCRAPES[0]["dns_sd_configs"][0]
    serving = {
        name: each for name, each in compose.items() if "BACKPASS_METRICS_PORT" in (each.get("environment") or {})
    }

    assert set(scraped["names"]) == set(serving)
    assert {int(each["environment"]["BACKPASS_METRICS_PORT"]) for each in serving.values()} == {scraped["port"]}
    assert not any(str(scraped["port"]) in str(each.get("ports", "")) for each in serving.values())


def test_random_paths_and_methods_add_no_series(tmp_path: Any) -> None:
    app = create_app(Settings(data_dir=tmp_path, device="cpu", access_log="off"))
    draw = random.Random(0)
    word = lambda: "".join(draw.choices(string.ascii_letters + string.digits + "%.~-", k=draw.randint(1, 12)))
    starts = ("/", "/v1/", "/v1/programs/", "/v1/sessions/", "/v1/sessions/x/", "/metrics/", "/healthz/", "/static/")

    async def ask(method: str, path: str) -> None:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path,
            "raw_path": path.encode(), "query_string": b"", "headers": [(b"host", b"localhost")], "scheme": "http",
            "server": ("localhost", 80), "client": ("127.0.0.1", 1), "on_disconnect": lambda: None,
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            pass

        await app(scope, receive, send)

    async def ask_all(count: int) -> None:
        for i in range(count):
            await ask(word().upper() if i % 10 == 0 else "GET", starts[i % len(starts)] + word())

    def series() -> int:
        return sum(line[:1] != "#" for line in app.state.metrics.render()[0].decode().splitlines())

    asyncio.run(ask_all(500))
    before = series()
    asyncio.run(ask_all(2500))

    assert series() == before


def test_worker_metrics_follow_the_processes(client: httpx.Client) -> None:
    pids = [worker["pid"] for worker in client.get("/v1/workers").json()["workers"]]
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    memory = {
        (sample.labels["worker"], sample.labels["kind"]): sample.value
        for sample in families["backpass_worker_memory_bytes"].samples
    }

    for slot, pid in enumerate(pids):
        resident = int(re.search(r"VmRSS:\s+(\d+) kB", open(f"/proc/{pid}/status").read())[1]) * 1024  # type: ignore[index]  # noqa: SIM115
        assert memory[str(slot), "resident"] == pytest.approx(resident, rel=0.2)
        assert 0 < memory[str(slot), "private"] < memory[str(slot), "limit"]
    assert all(sample.value > 0 for sample in families["backpass_worker_cpu_seconds"].samples)
