"""Prometheus metrics of one app: the backend's counters as they are, and the server's own timings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from truedraft import __version__
from truedraft.contract.backend import Backend, BackendStats
from truedraft.contract.request import FinishReason
from truedraft.server.histogram import WeightedHistogram

_TTFT_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKEN_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
_TOTAL_BOUNDS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class ServerMetrics:
    """Collects on its own registry, never on the process-wide one: apps do not mix."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._finished: dict[str, int] = dict.fromkeys(FinishReason, 0)
        self._refused: dict[int, int] = {}
        self.ttft_s = WeightedHistogram(
            "truedraft_time_to_first_token_seconds", "From acceptance to the first token", _TTFT_BOUNDS_S
        )
        self.token_s = WeightedHistogram(
            "truedraft_inter_token_latency_seconds",
            "Time between tokens: of a round, shared by its tokens",
            _TOKEN_BOUNDS_S,
        )
        self.total_s = WeightedHistogram(
            "truedraft_request_seconds", "From acceptance to the end", _TOTAL_BOUNDS_S
        )
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def count_finished(self, reason: FinishReason) -> None:
        """One sequence ended for `reason`."""
        self._finished[reason] += 1

    def count_refused(self, status: int) -> None:
        """One HTTP request was answered with an error."""
        self._refused[status] = self._refused.get(status, 0) + 1

    def text(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return bytes(generate_latest(self._registry))

    def collect(self) -> Iterator[Metric]:
        stats = self._backend.stats()
        yield from _model_info(self._backend)
        yield from _speculation(stats)
        yield from _load(stats)
        finished = CounterMetricFamily(
            "truedraft_requests_finished", "Sequences ended, by reason", labels=["finish_reason"]
        )
        for reason, count in self._finished.items():
            finished.add_metric([str(reason)], count)
        yield finished
        refused = CounterMetricFamily(
            "truedraft_http_errors", "HTTP requests answered with an error", labels=["status"]
        )
        for status, count in sorted(self._refused.items()):
            refused.add_metric([str(status)], count)
        yield refused
        for histogram in (self.ttft_s, self.token_s, self.total_s):
            yield histogram.family()


def _model_info(backend: Backend) -> Iterator[Metric]:
    info = backend.info
    labels = {
        "version": __version__,
        "engine": info.engine,
        "target": info.target,
        "drafter": info.drafter or "",
        "device": info.device,
        "dtype": info.dtype,
    }
    yield InfoMetricFamily("truedraft", "What is served", value=labels)


def _speculation(stats: BackendStats) -> Iterator[Metric]:
    spec = stats.speculation
    yield CounterMetricFamily("truedraft_spec_rounds", "Rounds of draft and verify", spec.num_rounds)
    yield CounterMetricFamily("truedraft_spec_drafted_tokens", "Drafts verified", spec.num_drafted)
    yield CounterMetricFamily("truedraft_spec_accepted_tokens", "Drafts kept", spec.num_accepted)
    yield CounterMetricFamily(
        "truedraft_spec_committed_tokens", "Tokens committed by rounds, bonus included", spec.num_committed
    )
    yield CounterMetricFamily("truedraft_plain_steps", "Steps without a draft", spec.num_plain_steps)
    yield _by_position("accepted", spec.accepted_by_position)
    yield _by_position("drafted", spec.drafted_by_position)
    yield GaugeMetricFamily(
        "truedraft_spec_tau", "Mean tokens committed a round since start; NaN before", _or_nan(spec.tau)
    )
    yield GaugeMetricFamily(
        "truedraft_verify_length", "Rows verified a sequence and round, lately", stats.mean_verify_len
    )


def _by_position(what: str, counts: Iterable[int]) -> Metric:
    family = CounterMetricFamily(
        f"truedraft_spec_{what}_by_position",
        f"Rounds that {what} the draft at a position",
        labels=["position"],
    )
    for position, count in enumerate(counts, start=1):
        family.add_metric([str(position)], count)
    return family


def _load(stats: BackendStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("truedraft_requests_running", "Sequences at work", stats.num_running)
    yield GaugeMetricFamily("truedraft_requests_waiting", "Sequences that wait", stats.num_waiting)
    yield CounterMetricFamily("truedraft_requests", "Sequences accepted", stats.num_requests)
    yield CounterMetricFamily("truedraft_preemptions", "Sequences set back", stats.num_preempted)
    yield CounterMetricFamily("truedraft_prompt_tokens", "Prompt tokens read", stats.num_prompt_tokens)
    yield CounterMetricFamily("truedraft_generation_tokens", "Tokens generated", stats.num_tokens)
    yield CounterMetricFamily("truedraft_engine_steps", "Steps of the engine", stats.num_steps)
    yield GaugeMetricFamily("truedraft_kv_used_ratio", "Share of the KV pages in use", stats.kv_used_frac)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
