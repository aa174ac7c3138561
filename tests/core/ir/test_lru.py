"""The bounded cache: order of eviction and limit."""

from __future__ import annotations

import threading

from core.ir.lru import LRU


def test_the_least_recently_used_values_go_first():
    cache: LRU[str] = LRU(10, len)
    for key in "abc":
        cache.put(key, key * 3)
    assert cache.get("a") == "aaa"

    cache.put("d", "dddd")

    assert [cache.get(key) for key in "abcd"] == ["aaa", None, "ccc", "dddd"]


def test_a_value_above_the_limit_stays_only_where_the_newest_must():
    cache: LRU[str] = LRU(10, len)
    cache.put("a", "a" * 11)
    assert len(cache) == 0

    cache = LRU(10, len, at_least=1)
    for key in "ab":
        cache.put(key, key * 11)
    assert list(cache) == ["b"]


def test_a_value_put_twice_counts_once_and_a_removed_one_does_not_count():
    cache: LRU[str] = LRU(10, len)
    for _ in range(4):
        cache.put("a", "aaaaa")
    cache.put("b", "bbbbb")
    assert list(cache) == ["a", "b"]

    assert cache.pop("a") == "aaaaa"
    assert cache.pop("a") is None
    cache.put("c", "ccccc")

    assert list(cache) == ["b", "c"]


def test_a_cache_stays_within_its_limit_while_threads_use_it():
    cache: LRU[int] = LRU(50)
    wrong: list[int] = []

    def use(start: int) -> None:
        for i in range(start, start + 3000):
            cache.put(i % 97, i % 97)
            found = cache.get((i * 7) % 97)
            if found not in (None, (i * 7) % 97) or len(cache) > 51:
                wrong.append(i)

    threads = [threading.Thread(target=use, args=(start,)) for start in (0, 31, 62)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert not wrong
    assert len(cache) == 50
