"""Access to a running service: keys, scopes, changes beside it, rates, quotas, usage, and the audit log."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import Any

import httpx
import pytest

from service.cli.main import main
from service.http.auth import is_public, scope_of
from tests.paths import ROOT
from tests.service.conftest import serve
from tests.service.forked import Forked
from tests.service.wire import opened, problem, regression, tensors

SKETCH = regression()
STEP = {"feeds": tensors({name: SKETCH.values[name] for name in ("x", "y")})}


def command(data_dir, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`backpass keys ...` in another process."""
    given = [sys.executable, "-m", "service", "keys", *arguments]
    environment = os.environ | {"BACKPASS_DATA_DIR": str(data_dir)}
    return subprocess.run(given, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180)


def commanded(capsys, data_dir, action: str, *arguments: str) -> tuple[int, str]:
    """The exit status of `backpass keys ...` in this process, and what it printed."""
    status = main(["keys", "--data-dir", str(data_dir), action, *arguments])
    return status, capsys.readouterr().out


def eventually(what, seconds: float = 60.0):
    """The first true result of `what`."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)
    return found


# --- the rule -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/v1/sessions", "read"), ("HEAD", "/v1/sessions", "read"), ("POST", "/v1/gradients", "write"),
        ("DELETE", "/v1/tapes/x", "write"), ("GET", "/v1/keys", "admin"), ("GET", "/v1/keys\n", "admin"),
        ("GET", "/v1/keys/key_a", "admin"), ("POST", "/v1/workers/wrk_a/drain", "admin"), ("GET", "/metrics", "admin"),
        ("GET", "/v1/audit", "admin"), ("PUT", "/v1/tenants/a", "admin"), ("GET", "/v1/keysets", "read"),
        ("OPTIONS", "/v1/programs", "write"), ("BREW", "/v1/programs", "write"),
    ],
)  # fmt: skip
def test_the_scope_of_a_request_comes_from_its_method_and_path(method, path, scope):
    assert scope_of(method, path) == scope


@pytest.mark.parametrize(
    "path",
    [
        "/docs/../v1/sessions", "/static/../v1", "/v1", "/v1/", "/docs\n", "/docs//", "//", "/healthz/live/x",
        "/healthz", "/openapi.json/x", "/problems/../v1/keys", "/V1/programs", "/v2/models", "/consolex",
        "/docs%2f..%2fv1",
    ],
)  # fmt: skip
def test_no_path_beside_the_public_ones_is_public(path):
    assert not is_public("GET", path) or ".." in path
    assert not is_public("POST", "/docs")


def test_public_paths_with_dots_reach_no_route(keyed):
    """They are not normalised, so the router does not know them either."""
    with socket.create_connection(("127.0.0.1", int(keyed.served.url.rpartition(":")[2]))) as connection:
        for path in (
            "/static/../v1/sessions",
            "/static/../../etc/passwd",
            "/console/../v1/sessions",
            "/docs/../v1",
            "/guide/../v1/sessions",
        ):
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            status = connection.recv(65536).split(b" ", 2)[1]
            assert status in (b"401", b"404", b"422"), path


def test_the_documentation_and_health_need_no_key_and_a_wrong_one_does_not_hurt(keyed):
    for name in (None, "nonsense", "one"):
        with keyed.client(name) as client:
            for path in ("/", "/docs", "/openapi.json", "/problems", "/problems/gone", "/static/docs.js", "/v2"):
                assert client.get(path).status_code in (200, 307), path
            for path in ("/guide/", "/guide/api/types/", "/guide/nothing"):  # 404 where the guide is not built
                assert client.get(path).status_code in (200, 404), path
            for path in ("/healthz/live", "/healthz/ready", "/healthz/startup"):
                assert client.get(path).status_code == 200, path


@pytest.mark.parametrize("form", ["bearer {}", "BEARER {}", "Bearer   {}"])
def test_the_scheme_is_written_in_any_case(keyed, form):
    answer = httpx.get(
        f"{keyed.served.url}/v1/me", headers={"authorization": form.format(keyed.keys["one"])}, timeout=60, verify=False
    )
    assert answer.json()["tenant"] == "acme"


@pytest.mark.parametrize("form", ["Basic {}", "{}", "Bearer", "Bearer {}x", "Bearer {} {}", "Token {}"])
def test_other_forms_of_the_header_are_refused(keyed, form):
    given = form.format(*[keyed.keys["one"]] * 2)
    problem(
        httpx.get(f"{keyed.served.url}/v1/me", headers={"authorization": given}, timeout=60, verify=False),
        401,
        "unauthenticated",
    )


def test_two_keys_in_one_request_are_refused(keyed):
    both = [("authorization", f"Bearer {keyed.keys[name]}") for name in ("one", "admin")]
    problem(httpx.get(f"{keyed.served.url}/v1/me", headers=both, timeout=60, verify=False), 401, "unauthenticated")


def test_a_key_in_the_query_opens_nothing(keyed):
    answer = httpx.get(f"{keyed.served.url}/v1/me?api_key={keyed.keys['one']}", timeout=60, verify=False)
    problem(answer, 401, "unauthenticated")


def test_a_request_with_a_wrong_key_is_refused_before_its_body_is_sent(keyed):
    with socket.create_connection(("127.0.0.1", int(keyed.served.url.rpartition(":")[2])), timeout=30) as connection:
        head = "POST /v1/gradients HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 5000000\r\nAuthorization: Bearer wrong\r\n\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_the_answers_about_wrong_keys_tell_nothing_about_other_keys(keyed):
    known = keyed.keys["one"]
    url = f"{keyed.served.url}/v1/me"
    near, far = (
        httpx.get(url, headers={"authorization": f"Bearer {key}"}, timeout=60, verify=False).json()
        for key in (known[:-1] + ("a" if known[-1] != "a" else "b"), "bp_" + "z" * 52)
    )
    assert near["detail"] == far["detail"]


def test_a_request_for_a_key_with_an_idempotency_key_is_refused_and_makes_none(keyed):
    with keyed.client("admin") as admin:
        before = admin.get("/v1/keys").json()["keys"]
        for path in ("/v1/keys", f"/v1/keys/{keyed.ids['one']}/rotate"):
            answer = admin.post(path, json={"tenant": "acme"}, headers={"Idempotency-Key": "a"})
            refusal = problem(answer, 422, "invalid-request")
            assert refusal["errors"][0]["parameter"] == "header: Idempotency-Key"
            assert "take no Idempotency-Key" in refusal["detail"]
        assert [key["id"] for key in admin.get("/v1/keys").json()["keys"]] == [key["id"] for key in before]


def test_me_tells_the_tenant_the_scopes_and_the_quotas_of_a_key(keyed):
    with keyed.client("one") as client:
        found = client.get("/v1/me").json()
        assert (found["tenant"], found["scopes"], found["key"]["id"]) == ("acme", ["read", "write"], keyed.ids["one"])
        assert found["quotas"] == client.get("/v1").json()["quotas"] or found["quotas"].keys()
        assert client.get("/v1").json()["access"]["keys_required"] is True
        assert keyed.keys["one"] not in client.get("/v1/me").text
    with keyed.client("file") as client:
        assert client.get("/v1/me").json()["tenant"] == "filed"
        problem(client.post("/v1/programs", json={}), 403, "forbidden")


# --- keys over HTTP, and beside the service -----------------------------------------------------------------------


def test_an_administrator_makes_rotates_and_revokes_a_key_over_http(keyed):
    with keyed.client("admin") as admin:
        made = admin.post("/v1/keys", json={"tenant": "fresh", "name": "x", "ttl_s": 3600}).json()
        with keyed.client(made["key"]) as fresh:
            assert fresh.get("/v1/me").json()["tenant"] == "fresh"
        shown = admin.get(f"/v1/keys/{made['id']}")
        assert made["key"] not in shown.text
        assert shown.json()["last_used"] == pytest.approx(time.time(), abs=30)
        rotated = admin.post(f"/v1/keys/{made['id']}/rotate", json={"overlap_s": 600}).json()
        for key in (made["key"], rotated["key"]):
            with keyed.client(key) as fresh:
                assert fresh.get("/v1/me").status_code == 200
        assert admin.delete(f"/v1/keys/{made['id']}").status_code == 204
        assert admin.delete(f"/v1/keys/{made['id']}").status_code == 204
        with keyed.client(made["key"]) as fresh:
            assert "revoked" in problem(fresh.get("/v1/me"), 401, "unauthenticated")["detail"]
        problem(admin.post(f"/v1/keys/{made['id']}/rotate", json={}), 409, "invalid-state")
        problem(admin.get("/v1/keys/key_" + "a" * 26), 404, "not-found")
        file_key = next(k for k in admin.get("/v1/keys?tenant=filed").json()["keys"])
        problem(admin.delete(f"/v1/keys/{file_key['id']}"), 409, "invalid-state")


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_a_stream_of_events_ends_with_its_key(keyed, end):
    accept = {"accept": "text/event-stream"}
    with keyed.client("admin") as admin, keyed.client("one") as one, opened(one, SKETCH) as path:
        ttl = {"ttl_s": 3} if end == "expired" else {}
        made = admin.post("/v1/keys", json={"tenant": "acme", "name": "reader of events", **ttl}).json()
        with (
            keyed.client(made["key"]) as own,
            own.stream("GET", f"{path}/events", headers=accept, timeout=12) as stream,
        ):
            assert stream.status_code == 200
            if end == "revoked":
                admin.delete(f"/v1/keys/{made['id']}")
            received = b"".join(stream.iter_raw())  # a stream that goes on sends nothing for 15 s: ReadTimeout

    assert b"still here" not in received


def test_the_list_of_keys_has_pages_and_no_secret(keyed):
    with keyed.client("admin") as admin:
        found, token = [], ""
        while token is not None:
            page = admin.get("/v1/keys", params={"page_size": 3, "page_token": token})
            assert not any(secret in page.text for secret in keyed.keys.values())
            found += [key["id"] for key in page.json()["keys"]]
            token = page.json()["next_page_token"]
        assert found == sorted(set(found))
        assert set(keyed.ids.values()) < set(found)


def test_an_answer_with_a_secret_never_becomes_an_operation(keyed):
    with keyed.client("admin", prefer="respond-async") as admin:
        first, second = (admin.post("/v1/keys", json={"tenant": "fresh"}).json() for _ in range(2))
        assert first["key"] != second["key"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"tenant": "A"}, "/tenant"), ({}, "/tenant"), ({"tenant": "a", "scopes": ["all"]}, "/scopes/0"),
        ({"tenant": "a", "scopes": []}, "/scopes"), ({"tenant": "a", "expires_in_s": 0}, "/expires_in_s"),
        ({"tenant": "a", "name": "x\ny"}, "/name"), ({"tenant": "a", "more": 1}, "/more"),
    ],
)  # fmt: skip
def test_a_wrong_request_for_a_key_is_answered_with_its_place(keyed, body, pointer):
    with keyed.client("admin") as admin:
        found = problem(admin.post("/v1/keys", json=body), 422, "invalid-request")
        assert pointer in [each["pointer"] for each in found["errors"]]


def test_the_first_key_closes_a_running_service_within_seconds(tmp_path, capsys):
    """And from then on `backpass keys` changes what the service accepts, without a restart."""
    with serve(tmp_path / "data", workers=1) as served:
        assert served.client.get("/v1").json()["access"]["keys_required"] is False
        problem(served.client.post("/v1/keys", json={"tenant": "acme"}), 409, "invalid-state")
        made = command(tmp_path / "data", "create", "--tenant", "acme", "--scopes", "read", "--json")
        key = json.loads(made.stdout)
        problem(eventually(lambda: (a := served.client.get("/v1/me")).is_error and a), 401, "unauthenticated")
        headers = {"authorization": f"Bearer {key['key']}"}
        assert served.client.get("/v1/me", headers=headers).json()["tenant"] == "acme"
        keys = partial(commanded, capsys, tmp_path / "data")
        assert key["id"] in keys("list")[1]
        assert key["key"] not in keys("list", "--json")[1]
        assert "revoked" in keys("revoke", key["id"])[1]
        assert served.client.get("/v1/me", headers=headers).status_code == 401
        assert keys("revoke", "key_" + "a" * 26)[0] == 1
        assert "jobs=3" in keys("tenants", "set", "acme", "jobs=3")[1]


def refusal(data_dir, **settings: object) -> str:
    """The message of a service that does not start."""
    given = {"data_dir": data_dir, "port": 0, "workers": 1, "device": "cpu"} | settings
    environment = os.environ | {f"BACKPASS_{name.upper()}": str(value) for name, value in given.items()}
    with tempfile.TemporaryFile("w+") as log:
        assert Forked(["serve"], environment, stderr=log).wait(60) in (1, 2)
        log.seek(0)
        return log.read().strip().splitlines()[-1]


def test_a_service_without_keys_refuses_to_listen_on_other_addresses_than_loopback(tmp_path):
    message = refusal(tmp_path, host="0.0.0.0")
    assert "backpass keys create" in message
    assert "BACKPASS_ALLOW_ANONYMOUS" in message


def test_a_wrong_file_of_keys_or_certificate_stops_the_start_with_one_line(tmp_path):
    file = tmp_path / "keys"
    file.write_text("acme:read\n")
    assert "line 1" in refusal(tmp_path / "data", api_keys_file=file)
    assert "BACKPASS_TLS_KEY" in refusal(tmp_path / "data", tls_cert=file)
    assert "no certificate" in refusal(tmp_path / "data", tls_cert=file, tls_key=file)


# --- quotas and rates ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def limits(keyed, tenant: str, **wanted: float):
    """Own limits of a tenant while the block runs."""
    with keyed.client("admin") as admin:
        assert admin.put(f"/v1/tenants/{tenant}", json={"limits": wanted}).status_code == 200
        try:
            yield
        finally:
            admin.put(f"/v1/tenants/{tenant}", json={"limits": dict.fromkeys(wanted)})


def test_a_limit_that_cannot_be_set_is_refused_with_a_suggestion_for_its_name_alone(keyed):
    with keyed.client("admin") as admin:
        for limit, suggestion in (({"job": 3}, "did you mean jobs?"), ({"jobs": -1}, None)):
            found = problem(admin.put("/v1/tenants/acme", json={"limits": limit}), 422, "invalid-request")
            assert [each.get("suggestion") for each in found["errors"]] == [suggestion]


def test_own_limits_of_counts_are_whole_numbers_as_those_of_the_settings_are(keyed):
    with keyed.client("limited") as client, limits(keyed, "limited", jobs=4, sessions=2.5, compute_seconds=0.5):
        quotas = client.get("/v1/me").json()["quotas"]
        with keyed.client("admin") as admin:
            own = admin.get("/v1/tenants/limited").json()["own"]

    found = {name: quotas[name]["limit"] for name in ("programs", "jobs", "sessions", "compute_seconds")}
    assert {name: (limit, type(limit)) for name, limit in found.items() if name != "programs"} == {
        "jobs": (4, int), "sessions": (2, int), "compute_seconds": (0.5, float),
    }  # fmt: skip
    assert isinstance(found["programs"], int)
    assert (own["jobs"], type(own["jobs"])) == (4, int)


def over(answer: httpx.Response, name: str) -> dict[str, Any]:
    found = problem(answer, 429, "quota-exceeded")
    assert found.get("quota", name) == name
    return found


def test_each_quota_of_things_refuses_the_next_one_and_counts_for_one_tenant_alone(keyed):
    session = {"program": SKETCH.document, "loss": "loss"}
    with keyed.client("limited") as limited, keyed.client("one") as one:
        before = limited.get("/v1/me").json()["quotas"]
        with limits(keyed, "limited", sessions=before["sessions"]["used"] + 1, tapes=1, programs=1):
            with opened(limited, SKETCH):
                assert limited.get("/v1/me").json()["quotas"]["sessions"]["used"] == before["sessions"]["used"] + 1
                over(limited.post("/v1/sessions", json=session), "sessions")
                with opened(one, SKETCH):
                    pass
            tape = limited.post("/v1/tapes", json={})
            assert tape.status_code == 201
            over(limited.post("/v1/tapes", json={}), "tapes")
            limited.delete(tape.headers["location"])
            first = limited.post("/v1/programs", json={"program": regression(rows=7).document})
            assert first.status_code == 201
            over(limited.post("/v1/programs", json={"program": regression(rows=8).document}), "programs")
            limited.delete(first.headers["location"])
        with limits(keyed, "limited", session_bytes=4):
            over(limited.post("/v1/sessions", json=session), "session_bytes")
        with limits(keyed, "limited", checkpoint_bytes=4), opened(limited, SKETCH) as path:
            over(limited.post(f"{path}/checkpoints", json={}), "checkpoint_bytes")
            sent = {"tensors": tensors({"w": SKETCH.values["w"]})}
            over(limited.post("/v1/checkpoints", json=sent), "checkpoint_bytes")
            rows = regression(rows=64).values
            table = {"columns": tensors({name: rows[name] for name in ("x", "y")})}
            dataset = limited.post("/v1/datasets", json=table).json()["id"]
            job = {**session, "dataset_id": dataset, "batch_size": 4, "steps": 4, "save_every": {"steps": 2}}
            trained = limited.post("/v1/jobs", json=job).headers["location"]
            done = eventually(lambda: (found := limited.get(trained).json())["state"] == "succeeded" and found)
            assert (done["reason"], done["step"]) == ("completed", 4)
            events = limited.get(f"{trained}/events").json()["events"]
            told = [each["data"]["detail"] for each in events if each["kind"] == "warning"]
            assert len(told) == 2 and all("no checkpoint" in each and "quota" in each for each in told)
            assert limited.get("/v1/checkpoints").json()["checkpoints"] == []
        with limits(keyed, "limited", program_bytes=10):
            sent = {"program": SKETCH.document, "values": tensors({"w": SKETCH.values["w"]})}
            over(limited.post("/v1/programs", json=sent), "program_bytes")
        with limits(keyed, "limited", dataset_bytes=10):
            rows = {"content": b"x,y\n1,2\n3,4\n", "headers": {"content-type": "text/csv"}}
            over(limited.post("/v1/datasets?name=rows", **rows), "dataset_bytes")
            over(limited.post("/v1/uploads", json={"size": 11}), "dataset_bytes")


def test_requests_beyond_the_rate_are_refused_with_the_time_to_wait(keyed):
    with keyed.client("limited") as limited, limits(keyed, "limited", requests_per_second=1, burst=3):
        answers = [limited.get("/v1/ops/relu") for _ in range(6)]
        assert [a.status_code for a in answers[:3]] == [200, 200, 200]
        found = problem(answers[-1], 429, "rate-limited")
        assert found["retryable"] is True
        time.sleep(int(answers[-1].headers["retry-after"]))
        assert limited.get("/v1/ops/relu").status_code == 200
        with keyed.client("one") as one:
            assert one.get("/v1/ops/relu").status_code == 200


def test_calls_beyond_the_compute_seconds_of_the_day_are_refused_and_reads_are_not(keyed):
    with keyed.client("limited") as limited, opened(limited, SKETCH) as path:
        assert limited.post(f"{path}/steps", json=STEP).status_code == 200
        with limits(keyed, "limited", compute_seconds=1e-9):
            found = over(limited.post(f"{path}/steps", json=STEP), "compute_seconds")
            assert found["retryable"] is True
            assert limited.get(path).status_code == 200
        assert limited.post(f"{path}/steps", json=STEP).status_code == 200


def test_a_running_job_waits_in_the_queue_when_the_compute_seconds_are_used_up(keyed):
    with keyed.client("limited") as limited:
        table = {"columns": tensors({name: SKETCH.values[name] for name in ("x", "y")})}
        dataset = limited.post("/v1/datasets", json=table).json()["id"]
        job = {"program": SKETCH.document, "loss": "loss", "dataset_id": dataset, "steps": 2**40}
        path = limited.post("/v1/jobs", json=job).headers["location"]
        eventually(lambda: limited.get(path).json()["step"] > 0)
        with limits(keyed, "limited", compute_seconds=1e-9):
            eventually(lambda: limited.get(path).json()["state"] == "queued")
        eventually(lambda: limited.get(path).json()["state"] == "running")
        limited.post(f"{path}/cancel")
        eventually(lambda: limited.delete(path).status_code == 204)


# --- usage and audit ----------------------------------------------------------------------------------------------


def usage_of(client: httpx.Client, tenant: str) -> dict[str, float]:
    rows = [row for row in client.get("/v1/usage").json()["usage"] if row["tenant"] == tenant]
    return rows[-1] if rows else dict.fromkeys(("steps", "requests", "bytes_in", "bytes_out", "compute_seconds"), 0.0)


def test_usage_counts_requests_steps_bytes_and_compute_time_of_the_tenant(keyed):
    with keyed.client("two") as two, opened(two, SKETCH) as path:
        before = usage_of(two, "other")
        body = json.dumps(STEP).encode()
        send = {"content": body, "headers": {"content-type": "application/json"}}
        answers = [two.post(f"{path}/steps", **send) for _ in range(5)]
        after = usage_of(two, "other")
        assert after["steps"] - before["steps"] == 5
        assert after["requests"] - before["requests"] == 6  # with the first reading
        assert after["bytes_in"] - before["bytes_in"] == 5 * len(body)
        sent = sum(len(answer.content) for answer in answers)
        assert after["bytes_out"] - before["bytes_out"] == pytest.approx(sent + 500, abs=500)
        assert 0 < after["compute_seconds"] - before["compute_seconds"] < 30
        assert {row["tenant"] for row in two.get("/v1/usage").json()["usage"]} == {"other"}
        problem(two.get("/v1/usage?tenant=acme"), 403, "forbidden")
        problem(two.get("/v1/usage?from=2026-02-30"), 422, "invalid-request")
        problem(two.get("/v1/usage?from=2020-01-01&to=2026-01-01"), 422, "invalid-request")
    with keyed.client("admin") as admin, keyed.client("one") as one:
        assert one.get("/v1/me").json()["tenant"] == "acme"
        assert {"other", "acme"} <= {row["tenant"] for row in admin.get("/v1/usage").json()["usage"]}
        text = admin.get("/metrics").text
        assert float(re.search(r'backpass_tenant_steps_total\{tenant="other"\} (\S+)', text)[1]) >= 5


def test_the_audit_log_has_creations_deletions_and_administration_but_no_steps(keyed):
    with keyed.client("two") as two, opened(two, SKETCH) as path:
        two.post(f"{path}/steps", json=STEP)
        assert two.delete(path, headers={"request-id": "my-request"}).status_code == 204
    with keyed.client("admin") as admin:

        def entries():
            found = admin.get("/v1/audit?tenant=other&page_size=200").json()["entries"]
            return found if any(each["request_id"] == "my-request" for each in found) else None

        found = eventually(entries)
        deleted = next(each for each in found if each["request_id"] == "my-request")
        assert (deleted["key"], deleted["target"], deleted["status"]) == (keyed.ids["two"], path, 204)
        assert deleted["action"] == "DELETE /v1/sessions/{session_id}"
        created = next(each for each in found if each["target"] == path and each["status"] == 201)
        assert created["action"] == "POST /v1/sessions"
        assert not any("/steps" in each["action"] for each in found)


def test_pages_of_the_audit_log_follow_each_other_without_gaps(keyed):
    """Reads by administrators have entries too, so the log grows at its front while it is read."""
    with keyed.client("admin") as admin:

        def first():
            found = admin.get("/v1/audit?tenant=ops&page_size=3").json()
            return found if found["next_page_token"] else None

        newest = eventually(first)
        path = f"/v1/audit?tenant=ops&page_size=200&page_token={int(newest['entries'][0]['n']) + 1}"
        everything = [each["n"] for each in admin.get(path).json()["entries"]]
        older = admin.get(f"/v1/audit?tenant=ops&page_size=200&page_token={newest['next_page_token']}").json()
        pages = [each["n"] for each in newest["entries"] + older["entries"]]
        assert len(newest["entries"]) == 3 and older["entries"]
        assert pages[:200] == everything and everything == sorted(everything, reverse=True)


# --- pages of other origins ---------------------------------------------------------------------------------------


def test_pages_of_listed_origins_may_call_and_those_of_others_may_not(keyed):
    preflight = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    with keyed.client(None) as client:
        for origin, allowed in (("https://app.example.org", True), ("https://evil.example.org", False)):
            answer = client.options("/v1/gradients", headers={"origin": origin, **preflight})
            assert (answer.headers.get("access-control-allow-origin") == origin) is allowed
            refused = client.get("/v1/me", headers={"origin": origin})
            assert refused.status_code == 401
            assert ("access-control-allow-origin" in refused.headers) is allowed
    with keyed.client("one", origin="https://app.example.org") as client:
        assert client.get("/v1/me").headers["access-control-allow-origin"] == "https://app.example.org"


def test_without_the_setting_no_origin_is_allowed(client):
    answer = client.get("/v1/ops/relu", headers={"origin": "https://app.example.org"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


# --- fairness -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_hundred_calls_of_one_tenant_delay_a_call_of_another_by_few_calls(tmp_path):
    """One worker, calls of about 50 ms; the other tenant's calls wait for the one that runs, and no others."""
    from tests.service.tenants.conftest import make_keys

    keys = make_keys(tmp_path / "data")
    with serve(tmp_path / "data", workers=1, compile="never") as served:
        keys.served = served
        slow = regression(rows=4000)
        body = {
            "program": slow.document,
            "loss": "loss",
            "feeds": tensors({name: slow.values[name] for name in ("x", "y")}),
            "parameters": tensors({"w": slow.values["w"]}),
        }
        with keys.client("one") as one, keys.client("two") as two:
            one.timeout = 120
            alone = min(_timed(two, body) for _ in range(5))
            with concurrent.futures.ThreadPoolExecutor(60) as pool:
                flood = [pool.submit(one.post, "/v1/gradients", json=body) for _ in range(200)]
                time.sleep(0.5)
                beside = sorted(_timed(two, body) for _ in range(5))[2]
                statuses = {each.result().status_code for each in flood}
        assert statuses <= {200, 429}
        assert beside < 12 * alone + 0.5


def _timed(client: httpx.Client, body: dict[str, Any]) -> float:
    started = time.perf_counter()
    assert client.post("/v1/gradients", json=body).status_code == 200
    return time.perf_counter() - started


def test_a_refused_head_has_no_content_that_the_next_answer_would_follow(keyed):
    """Content after the headers would be read as the start of the next answer on the connection."""
    lines = b" HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    with socket.create_connection(("127.0.0.1", keyed.served.client.base_url.port), timeout=30) as connection:
        connection.sendall(b"HEAD /v1/sessions" + lines + b"\r\n")
        connection.sendall(b"GET /healthz/live" + lines + b"connection: close\r\n\r\n")
        received = b"".join(iter(lambda: connection.recv(65536), b""))

    refusal, _, rest = received.partition(b"\r\n\r\n")
    assert refusal.startswith(b"HTTP/1.1 401 ")
    assert rest.startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_new_key_comes_with_the_ways_to_use_it_beside_the_output(tmp_path, capsys):
    for arguments, word in ((["create"], "BACKPASS_API_KEY."), (["create", "--line"], "BACKPASS_API_KEYS_FILE")):
        assert main(["keys", "--data-dir", str(tmp_path), *arguments]) == 0
        printed = capsys.readouterr()
        assert len(printed.out.split()) == 1 and word in printed.err
    assert main(["keys", "--data-dir", str(tmp_path), "create", "--json"]) == 0
    assert capsys.readouterr().err == ""
