"""Clients that repeat each request until it is acknowledged."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import save

from tests.reliability.workload import NETWORK, Model, Sent

__all__ = ["Client", "JobClient", "Trained"]

KEPT = ("loss", "fetched", "gradient_norms", "step", "seq", "applied", "learning_rate")

TIMES = ("time", "seconds", "ms")  # columns of the metrics of a job that differ between runs


class Trained:
    """The numbers of one session. answers: of its requests, in order; values: its parameters and optimiser state.

    progress: goes up with each answer for which a worker has computed.
    """

    def __init__(self) -> None:
        self.progress = 0
        self.answers: list[dict[str, Any]] = []
        self.values: dict[str, Any] = {}
        self.retries = 0
        self.error: BaseException | None = None


class _Persistent:
    """Sends each request until it is acknowledged; runs in a thread."""

    def __init__(self, urls: Sequence[str], seed: int, patience: float) -> None:
        """urls: of the services, one of which gets each request by chance.

        patience: seconds for one request with all its repetitions.
        """
        self._http, self._urls, self._rng = httpx.Client(timeout=30.0, verify=False), urls, random.Random(seed)
        self._patience = patience
        self.trained = Trained()
        self.thread = threading.Thread(target=self._run, daemon=True)  # a run that failed does not wait for it

    def _run(self) -> None:
        try:
            self._train()
        except BaseException as error:
            self.trained.error = error
        finally:
            self._http.close()

    def _train(self) -> None:
        raise NotImplementedError

    def _until_done(
        self, method: str, path: str, body: Any, headers: dict[str, str], content: bytes | None = None
    ) -> httpx.Response:
        """The answer with a status below 300. A request that fails for a reason that may pass is sent again."""
        end = time.monotonic() + self._patience
        sent = 0
        while True:
            try:
                url = self._rng.choice(self._urls) + path
                sent += 1
                answer = self._http.request(method, url, json=body, headers=headers, content=content)
                if answer.status_code < 300:
                    return answer
                if method == "DELETE" and answer.status_code == 404 and sent > 1:
                    return answer  # deleted by a request whose answer was lost
                problem = answer.json()
                # worker-lost: two workers were killed during the call, which was given up and has not happened
                may_pass = problem["retryable"] or answer.status_code in (429, 507) or problem["code"] == "worker-lost"
                assert may_pass, f"{method} {path}: {problem}"
            except httpx.TransportError as error:
                problem = {"detail": repr(error)}
            assert time.monotonic() < end, f"{method} {path} does not succeed: {problem}"
            self.trained.retries += 1
            time.sleep(0.05)


class Client(_Persistent):
    """Trains one session by a script."""

    def __init__(
        self,
        urls: Sequence[str],
        model: Model,
        requests: Iterable[Sent],
        seed: int,
        patience: float = 300.0,
        halfway: Callable[[], object] | None = None,
    ) -> None:
        """halfway: called after half of the requests; it may wait."""
        super().__init__(urls, seed, patience)
        self._model, self._requests, self._seed, self._halfway = model, list(requests), seed, halfway

    def _train(self) -> None:
        settings = {
            "program": self._model.program,
            "loss": "loss",
            "optimizer": self._model.optimizer,
            "init": {"seed": self._seed},
        }
        key = {"Idempotency-Key": f"session-{self._seed}"}
        path = self._until_done("POST", "/v1/sessions", settings, key).headers["location"]
        seq = 0
        for number, each in enumerate(self._requests):
            if self._halfway is not None and number == len(self._requests) // 2:
                self._halfway()
            body = each.body
            if each.is_numbered:
                seq += 1
                body = {**body, "seq": seq}
            place = f"{path}/{each.path}" if each.path else path
            answer = self._until_done(each.method, place, body, dict(each.headers)).json()
            if each.is_numbered:
                assert answer["seq"] == seq
                self.trained.answers.append({name: answer[name] for name in KEPT if name in answer})
                self.trained.progress += 1
        for name in ("parameters", "optimizer"):
            answer = self._until_done("GET", f"{path}/{name}", None, {}).json()
            self.trained.values[name] = {k: v for k, v in answer.items() if k not in ("timing_ms", "weights_version")}
        self._until_done("DELETE", path, None, {})


class JobClient(_Persistent):
    """Trains one model by a job on a dataset, and waits for its end."""

    def __init__(self, urls: Sequence[str], steps: int, seed: int, patience: float = 300.0) -> None:
        super().__init__(urls, seed, patience)
        self._steps, self._seed = steps, seed

    def _train(self) -> None:
        rng = np.random.default_rng(self._seed)
        rows = 400
        shapes = {name: (rows, *shape[1:]) for name, (shape, _) in NETWORK.feeds.items()}
        table = save({name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()})
        upload = {"content-type": "application/x-safetensors"}
        dataset = self._until_done("POST", "/v1/datasets", None, upload, table).json()["id"]
        asked = {
            "program": NETWORK.program,
            "loss": "loss",
            "optimizer": NETWORK.optimizer,
            "init": {"seed": self._seed},
            "dataset_id": dataset,
            "batch_size": 16,
            "steps": self._steps,
            "seed": self._seed,
            "validation": {"fraction": 0.1, "every": 50},
        }
        key = {"Idempotency-Key": f"job-{self._seed}"}
        job = self._until_done("POST", "/v1/jobs", asked, key).headers["location"]
        end = time.monotonic() + 2 * self._patience
        while (found := self._until_done("GET", job, None, {}).json())["state"] in ("queued", "running"):
            assert time.monotonic() < end, found
            self.trained.progress = found["step"]
            time.sleep(0.1)
        assert found["state"] == "succeeded", found
        metrics = self._until_done("GET", f"{job}/metrics", None, {}).json()
        columns = {name: each for name, each in metrics["columns"].items() if name not in TIMES}
        self.trained.answers = [{"step": step} for step in metrics["step"]]
        values = self._until_done("GET", f"/v1/sessions/{found['session_id']}/parameters", None, {}).json()
        self.trained.values = {"columns": columns, "parameters": values["parameters"], "step": found["step"]}
