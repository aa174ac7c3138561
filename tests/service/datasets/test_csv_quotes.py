"""A CSV file whose quotes are wrong is refused; the module csv of Python, which is strict too, is the judge."""

from __future__ import annotations

import csv
import io
import random

import pytest

from service.datasets import csv_quotes
from service.datasets.csv_quotes import check_quotes
from service.problems import HttpProblem


def is_refused(path, text: str, delimiter: str = ",") -> bool:
    path.write_bytes(text.encode())
    try:
        check_quotes(path, delimiter, 1000)
    except HttpProblem:
        return True
    return False


def is_wrong(text: str, delimiter: str = ",") -> bool:
    try:
        list(csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter))
    except csv.Error:
        return True
    return False


@pytest.mark.parametrize("part", [1, 2, 5, 2**20])
def test_random_texts_are_refused_if_and_only_if_their_quotes_are_wrong(tmp_path, monkeypatch, part):
    monkeypatch.setattr(csv_quotes, "PART", part)
    draw, seen = random.Random(part), {True: 0, False: 0}
    for _ in range(800):
        delimiter = draw.choice(",;|\t ")
        text = "".join(
            draw.choices(['"', '""', "a", delimiter, "\n", "\r\n"], [4, 1, 3, 3, 1, 1], k=draw.randrange(12))
        )
        wrong = is_wrong(text, delimiter)
        assert is_refused(tmp_path / "x.csv", text, delimiter) == wrong, (text, delimiter)
        seen[wrong] += 1

    assert min(seen.values()) > 200


def test_spaces_after_a_closing_quote_are_accepted(tmp_path):
    assert not is_refused(tmp_path / "x.csv", 'a,b\n"x" ,"y"\t\n')


def test_a_quote_is_not_closed_when_its_cell_is_longer_than_the_parser_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_quotes, "PART", 100)
    (tmp_path / "x.csv").write_text('a\n"' + "x" * 2000 + '"\n')

    with pytest.raises(HttpProblem, match="line 2: a quote that begins a cell is not closed"):
        check_quotes(tmp_path / "x.csv", ",", 1000)
