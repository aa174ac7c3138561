"""`/guide`: pages and files with their headers, unknown addresses, and an installation without the guide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from service import problems
from service.http.auth import is_public
from service.http.query_params import known_parameters
from service.routes import guide

HTML = {"accept": "text/html,*/*;q=0.8"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small site, beside a file that is not part of it."""
    (tmp_path / "secret.txt").write_text("secret")
    site = tmp_path / "site"
    (site / "start" / "curl").mkdir(parents=True)
    (site / "index.html").write_text("first")
    (site / "404.html").write_text("unknown")
    (site / "start" / "curl" / "index.html").write_text("curl")
    for name in ("a.js", "a.css", "a.svg", "a.json", "a.py", ".hidden"):
        (site / name).write_text(name)
    monkeypatch.setattr(guide, "GUIDE", site)
    return site


@pytest.fixture
def client() -> Iterator[TestClient]:
    app = FastAPI(redirect_slashes=False, dependencies=[Depends(known_parameters)])
    problems.install(app)
    app.include_router(guide.router)
    with TestClient(app, follow_redirects=False) as client:
        yield client


@pytest.mark.usefixtures("folder")
class TestBuilt:
    @pytest.mark.parametrize(
        ("path", "location"),
        [
            ("/guide", "guide/"),
            ("/guide/start/curl", "curl/"),
            ("/guide?h=matmul", "guide/?h=matmul"),
            ("/guide/start/curl?h=a%20b", "curl/?h=a%20b"),
        ],
    )
    def test_an_address_without_its_slash_leads_to_the_page(self, client: TestClient, path: str, location: str) -> None:
        answer = client.get(path)

        assert (answer.status_code, answer.headers["location"]) == (308, location)
        assert client.get(path, follow_redirects=True).status_code == 200

    @pytest.mark.parametrize(
        ("path", "media", "text"),
        [
            ("/guide/", "text/html; charset=utf-8", "first"),
            ("/guide/start/curl/", "text/html; charset=utf-8", "curl"),
            ("/guide/?q=tensor", "text/html; charset=utf-8", "first"),
            ("/guide/a.js", "text/javascript; charset=utf-8", "a.js"),
            ("/guide/a.css", "text/css; charset=utf-8", "a.css"),
            ("/guide/a.svg", "image/svg+xml", "a.svg"),
            ("/guide/a.json", "application/json", "a.json"),
            ("/guide/a.py", "text/plain; charset=utf-8", "a.py"),
        ],
    )
    def test_pages_and_files_have_their_media_type_and_policy(
        self, client: TestClient, path: str, media: str, text: str
    ) -> None:
        answer = client.get(path)

        assert (answer.status_code, answer.text) == (200, text)
        assert answer.headers["content-type"] == media
        assert "script-src 'self';" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]

    def test_head_has_the_headers_of_get(self, client: TestClient) -> None:
        got, head = client.get("/guide/"), client.head("/guide/")

        assert head.status_code == 200
        assert head.headers == got.headers
        assert client.head("/guide").status_code == 308
        assert client.head("/guide/nothing").status_code == 404

    def test_a_known_version_is_not_sent_again_and_a_new_build_is(self, client: TestClient, folder: Path) -> None:
        tag = client.get("/guide/").headers["etag"]

        for known in (tag, f'"other", W/{tag}', "*"):
            again = client.get("/guide/", headers={"if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        (folder / "index.html").write_text("second")
        changed = client.get("/guide/", headers={"if-none-match": tag})

        assert (changed.status_code, changed.text) == (200, "second")
        assert changed.headers["cache-control"] == "no-cache"

    @pytest.mark.parametrize(
        "path", ["nothing", "nothing/", "start/", "start", "index.html/", "a.js/b", "%00", "x" * 5000]
    )
    def test_an_unknown_page_is_a_page_for_browsers_and_a_problem_for_others(
        self, client: TestClient, path: str
    ) -> None:
        page, problem = client.get(f"/guide/{path}", headers=HTML), client.get(f"/guide/{path}")

        assert (page.status_code, page.text) == (404, "unknown")
        assert page.headers["vary"] == "Accept"
        assert (problem.status_code, problem.json()["code"]) == (404, "not-found")

    @pytest.mark.parametrize(
        "path", ["..%2fsecret.txt", "%2e%2e/secret.txt", "start/..%2f..%2fsecret.txt", "%2fetc%2fpasswd", ".hidden",
                 "..%5csecret.txt", "start//curl/", "%2e", "a.js%00"],
    )  # fmt: skip
    def test_no_path_leaves_the_folder(self, client: TestClient, path: str) -> None:
        assert client.get(f"/guide/{path}").status_code == 404

    def test_other_methods_and_parameters_are_refused(self, client: TestClient) -> None:
        assert client.post("/guide/").status_code == 405
        assert client.get("/guide/?x=1").status_code == 422


def test_without_a_build_the_answer_says_how_to_build_it(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide, "GUIDE", tmp_path / "nowhere")

    page, problem = client.get("/guide/", headers=HTML), client.get("/guide/")

    assert page.status_code == problem.status_code == 404
    assert "<code>make docs</code>" in page.text
    assert "make docs" in problem.json()["detail"]


@pytest.mark.parametrize("path", ["/guide", "/guide/", "/guide/api/types/", "/guide/search/search_index.json"])
def test_the_guide_needs_no_key(path: str) -> None:
    assert is_public("GET", path) and is_public("HEAD", path) and not is_public("POST", path)


@pytest.mark.parametrize("path", ["/guidex", "/guide\n", "/guide/%2e", "/guide/a\n", "/guide/a b"])
def test_other_paths_need_a_key(path: str) -> None:
    assert not is_public("GET", path)
