from __future__ import annotations

import pytest

from probing.runtime import machine as stopwatch


def test_stages_follow_one_another_and_the_total_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 12.5, 13.0, 20.0])
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: next(times))
    watch = stopwatch.Stopwatch()
    watch.end("extract")
    watch.end("probe")
    assert watch.timings() == {"extract_s": 2.5, "probe_s": 0.5, "total_s": 3.0}
    watch.end("rank")
    found = watch.timings()
    assert list(found) == ["extract_s", "probe_s", "rank_s", "total_s"]
    assert found["total_s"] == pytest.approx(sum(seconds for name, seconds in found.items() if name != "total_s"))
