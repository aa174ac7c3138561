"""A recurrent network as a Python loop over the letters of a word, trained on a tape.

It learns to distinguish words of Python's reference manual from the same words backwards. A word of seven letters takes
seven trips of the loop, which record the ops of seven letters; all words of that length share one compiled structure.
The parameters stay in this process. Their update is two lines of numpy.

    python -m examples.words --url http://127.0.0.1:8080
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pydoc_data import topics

import numpy as np
from tqdm import tqdm

import backpass_client as bp
from examples.client import arguments

LETTERS, HIDDEN, BATCH = 26, 48, 32
SHORTEST, LONGEST = 4, 10
RATE, MOMENTUM, LONGEST_GRADIENT = 0.2, 0.9, 1.0
TEST = 0.2  # the fraction of the words for testing

Words = dict[int, np.ndarray]


def load(random: np.random.Generator) -> tuple[Words, Words]:
    """(train, test): length -> words as letter numbers [words, length]."""
    found: dict[int, list[list[int]]] = defaultdict(list)
    for word in sorted(set(re.findall(r"\b[a-z]+\b", " ".join(topics.topics.values())))):
        if SHORTEST <= len(word) <= LONGEST and word != word[::-1]:
            found[len(word)].append([ord(letter) - ord("a") for letter in word])
    train, test = {}, {}
    for length, words in sorted(found.items()):
        shuffled = random.permutation(np.array(words))
        cut = round(len(shuffled) * TEST)
        test[length], train[length] = shuffled[:cut], shuffled[cut:]
    return train, test


def with_reversed(words: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(`words` with about half of them reversed, 1 for each reversed word)."""
    backwards = random.random(len(words)) < 0.5
    return np.where(backwards[:, None], words[:, ::-1], words), backwards.astype(np.int64)


class Network:
    """``h = tanh(E[letter] + h W + b)`` for each letter, then ``h V + c`` as the logits of forwards and backwards."""

    def __init__(self, random: np.random.Generator) -> None:
        def drawn(name: str, *shape: int, scale: float) -> bp.Variable:
            return bp.Variable((random.normal(size=shape) * scale).astype("float32"), name=name)

        self.E = drawn("E", LETTERS, HIDDEN, scale=0.5)
        self.W = drawn("W", HIDDEN, HIDDEN, scale=HIDDEN**-0.5)
        self.b = drawn("b", HIDDEN, scale=0)
        self.V = drawn("V", HIDDEN, 2, scale=HIDDEN**-0.5)
        self.c = drawn("c", 2, scale=0)
        self.weights = [self.E, self.W, self.b, self.V, self.c]
        self.velocity = [np.zeros_like(w.data) for w in self.weights]

    def __call__(self, words: np.ndarray) -> bp.Expression:
        h = None
        for letters in words.T:
            x = self.E[letters] + self.b
            h = bp.tanh(x if h is None else x + h @ self.W)
        return h @ self.V + self.c

    def update(self, rate: float) -> None:
        """One momentum step, with the gradients clipped to a joint 2-norm of at most LONGEST_GRADIENT."""
        length = np.sqrt(sum(float((w.grad**2).sum()) for w in self.weights))
        for w, velocity in zip(self.weights, self.velocity, strict=True):
            velocity *= MOMENTUM
            velocity -= rate * min(1.0, LONGEST_GRADIENT / length) * w.grad
            w.data += velocity
            w.zero_grad()


def accuracy(tape: bp.Tape, network: Network, test: Words) -> float:
    random = np.random.default_rng(1)
    right = []
    for words in test.values():
        tape.renew()
        seen, backwards = with_reversed(words, random)
        right.append(network(seen).value.argmax(1) == backwards)
    return float(np.concatenate(right).mean())


def main() -> int:
    given = arguments(__doc__, steps=400)
    random = np.random.default_rng(0)
    train, test = load(random)
    network = Network(random)
    lengths = np.array(list(train))
    chance = np.array([len(words) for words in train.values()], float)
    compiled = 0
    with bp.lazy(given.url) as tape:
        before = accuracy(tape, network, test)
        with tqdm(range(given.steps), desc="words", unit="step", file=sys.stdout, ascii=" .:#", ncols=100) as bar:
            for step in bar:
                tape.renew()
                words = train[int(random.choice(lengths, p=chance / chance.sum()))]
                seen, backwards = with_reversed(words[random.integers(0, len(words), BATCH)], random)
                loss = bp.softmax_with_cross_entropy(network(seen), backwards, reduction="mean")
                compiled += loss.backward().compiled
                network.update(RATE * (1 - step / given.steps))
                bar.set_postfix(letters=seen.shape[1], loss=f"{loss.item():.3f}", refresh=False)
        after = accuracy(tape, network, test)
    print(f"\naccuracy on unseen words: {before:.3f} -> {after:.3f}")
    print(f"{given.steps} graphs recorded, {compiled} of them new to the service: at most one for each word length")
    return 0 if after > 0.75 else 1


if __name__ == "__main__":
    sys.exit(main())
