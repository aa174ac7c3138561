"""Train a character RNN, written as a `while` loop, on Python's reference manual.

The text is the help pages of CPython (`pydoc_data.topics`, about half a million characters). The feed `n` sets the
number of trips of the loop, here a different one in each step; the backward pass is a loop with the same trips.

    python -m examples.rnn_text --url http://127.0.0.1:8080
"""

from __future__ import annotations

import math
import re
import sys
from pydoc_data import topics

import numpy as np
from tqdm import tqdm

from examples.client import Backpass, Session, arguments
from examples.models import character_rnn

BATCH, HIDDEN = 32, 128
SHORTEST, LONGEST = 16, 32
TEST = 0.1  # the fraction of the text for testing


def load() -> tuple[str, np.ndarray, np.ndarray]:
    """(alphabet, train, test). The texts are positions in the alphabet."""
    pages = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    text = re.sub(r" +", " ", pages)  # indentation is layout, not language
    alphabet = "".join(sorted(set(text)))
    at = {character: index for index, character in enumerate(alphabet)}
    numbers = np.array([at[character] for character in text])
    cut = round(len(numbers) * (1 - TEST))
    return alphabet, numbers[:cut], numbers[cut:]


def pieces(text: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """BATCH random pieces of the text, each of LONGEST + 1 characters: [time, batch]."""
    starts = random.integers(0, len(text) - LONGEST - 1, BATCH)
    return np.stack([text[start : start + LONGEST + 1] for start in starts], axis=1)


def bits(session: Session, text: np.ndarray, rounds: int = 8) -> float:
    """Mean bits per character on random pieces of `text`; every call uses the same pieces."""
    random = np.random.default_rng(1)
    losses = []
    for _ in range(rounds):
        feeds = {"text": pieces(text, random), "n": np.array(LONGEST)}
        losses.append(session.evaluate(feeds, ["loss"])["loss"])
    return float(np.mean(losses)) / math.log(2)


def continued(session: Session, alphabet: str, start: str, length: int) -> str:
    """`start`, continued with characters drawn from the predictions of the network."""
    random = np.random.default_rng(2)
    written = [alphabet.index(character) for character in start]
    while len(written) < length:
        seen = written[-LONGEST:]
        text = np.zeros((LONGEST + 1, BATCH), np.int64)
        text[: len(seen)] = np.array(seen)[:, None]
        logits = session.evaluate({"text": text, "n": np.array(len(seen))}, ["next_logits"])["next_logits"][0]
        chance = np.exp((logits - logits.max()).astype("float64") / 0.7)
        written.append(int(random.choice(len(alphabet), p=chance / chance.sum())))
    return "".join(alphabet[each] for each in written)


def main() -> int:
    given = arguments(__doc__, steps=500, characters=200)
    alphabet, train, test = load()
    program = character_rnn(len(alphabet), BATCH, HIDDEN)
    print(f"{len(train)} training characters, alphabet of {len(alphabet)}")
    random = np.random.default_rng(0)
    optimizer = {"type": "adam", "learning_rate": 0.01}
    with (
        Backpass(given.url) as service,
        service.session(service.register(program), loss="loss", optimizer=optimizer, init={"seed": 0}) as session,
    ):
        before = bits(session, test)
        with tqdm(range(given.steps), desc="rnn", unit="step", file=sys.stdout, ascii=" .:#", ncols=100) as bar:
            for _ in bar:
                trips = random.integers(SHORTEST, LONGEST + 1)
                answer = session.step({"text": pieces(train, random), "n": np.array(trips)})
                bar.set_postfix(trips=int(trips), loss=f"{answer['loss']:.3f}", refresh=False)
        after = bits(session, test)
        print(f"\nunseen text: {before:.2f} -> {after:.2f} bits per character\n")
        if given.characters:
            print(continued(session, alphabet, "The ", given.characters))
    return 0 if after < before - 1 else 1


if __name__ == "__main__":
    sys.exit(main())
