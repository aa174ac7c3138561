"""The main numbers of the metrics, as plain data for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.observability.metrics import Metrics

__all__ = ["duration", "statistics"]


def statistics(metrics: Metrics) -> dict[str, Any]:
    """Requests, waiting calls, and durations in seconds, since the start of the service."""
    found: dict[str, Any] = {"active_requests": metrics.active, "waiting_calls": 0, "phases": {}, "requests": {}}
    found |= {"compile": duration({}, 0.0), "compile_cache": {"hits": 0, "misses": 0}}
    for family in metrics.registry.collect():
        match family.name:
            case "backpass_waiting_calls":
                found["waiting_calls"] = int(sum(sample.value for sample in family.samples))
            case "backpass_step_phase_seconds":
                found["phases"] = _durations(family.samples, "phase")
            case "backpass_program_compile_seconds":
                found["compile"] = _durations(family.samples, "").get("", found["compile"])
            case "backpass_compile_cache_hits" | "backpass_compile_cache_misses":
                total = sum(sample.value for sample in family.samples if sample.name.endswith("_total"))
                found["compile_cache"][family.name.rpartition("_")[2]] = int(total)
            case "http_server_request_duration_seconds":
                for sample in family.samples:
                    if sample.name.endswith("_count"):
                        status = f"{sample.labels['status'][0]}xx"
                        found["requests"][status] = found["requests"].get(status, 0) + int(sample.value)
    found["requests"] = dict(sorted(found["requests"].items()))
    return found


def _durations(samples: Sequence[Any], label: str) -> dict[str, dict[str, Any]]:
    """Value of `label` -> the distribution that its samples describe."""
    buckets: dict[str, dict[float, float]] = {}
    sums: dict[str, float] = {}
    for sample in samples:
        value = sample.labels.get(label, "")
        if sample.name.endswith("_bucket"):
            buckets.setdefault(value, {})[float(sample.labels["le"])] = sample.value
        elif sample.name.endswith("_sum"):
            sums[value] = sample.value
    return {value: duration(each, sums[value]) for value, each in buckets.items()}


def duration(cumulated: Mapping[float, float], total: float) -> dict[str, Any]:
    """Count, mean, median and 95th percentile. cumulated: upper bound -> number of observations up to it."""
    count = max(cumulated.values(), default=0)
    if not count:
        return {"count": 0, "mean": None, "median": None, "p95": None}
    largest = max(bound for bound in cumulated if bound != float("inf"))

    def quantile(share: float) -> float:
        """The smallest bound with this share of observations; the largest finite one for those above it."""
        return min((bound for bound, below in cumulated.items() if below >= share * count), default=largest)

    found = {"median": quantile(0.5), "p95": quantile(0.95)}
    return {"count": int(count), "mean": total / count} | {name: min(bound, largest) for name, bound in found.items()}
