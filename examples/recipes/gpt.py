"""GPT: a small transformer reads Python's reference manual letter by letter, and writes a page in its style.

The text is cut into pieces of 64 characters, a dataset that the service stores. A job trains on it; then the trained
model continues a text, one drawn character at a time.

    python -m examples.recipes.gpt --url http://127.0.0.1:8080
"""

from __future__ import annotations

import math
import re
import sys
from pydoc_data import topics

import numpy as np

import backpass_client as bp
from examples.recipes.start import connected, options

CONTEXT = 64


# --8<-- [start:model]
def gpt(
    characters: int, context: int = CONTEXT, layers: int = 2, heads: int = 4, features: int = 64
) -> bp.BuiltProgram:
    @bp.program
    def network(tokens: bp.i64["batch", context], following: bp.i64["batch", context]):
        normal = {"type": "normal", "std": 0.02}
        table = bp.nn.Embedding(characters, features, init=normal, name="characters")
        h = table(tokens) + bp.parameter("positions", [context, features], init=normal)
        for i in range(layers):
            h = bp.nn.TransformerBlock(heads, causal=True, name=f"block_{i}")(h)
        logits = bp.nn.LayerNorm(name="norm")(h) @ table.table(tokens).T  # the table is the last layer too
        return {"loss": bp.softmax_with_cross_entropy(logits, following, reduction="mean"), "logits": logits}

    return network


# --8<-- [end:model]


# --8<-- [start:data]
def load() -> tuple[str, np.ndarray]:
    """(alphabet, text as positions in the alphabet)."""
    pages = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    text = re.sub(r" +", " ", pages)  # indentation is layout, not language
    alphabet = "".join(sorted(set(text)))
    at = {character: index for index, character in enumerate(alphabet)}
    return alphabet, np.array([at[character] for character in text])


def pieces(text: np.ndarray, context: int = CONTEXT) -> dict[str, np.ndarray]:
    """Rows of `context` characters, and of the characters that follow each of them."""
    count = (len(text) - 1) // context
    return {
        "tokens": text[: count * context].reshape(count, context),
        "following": text[1 : count * context + 1].reshape(count, context),
    }


# --8<-- [end:data]


# --8<-- [start:train]
def run(
    service: bp.Service,
    steps: int = 1500,
    batch_size: int = 32,
    layers: int = 2,
    features: int = 64,
    length: int = 300,
) -> dict[str, float]:
    """Train; prints a text of `length` characters. Returns the bits per character on unseen text, before and after."""
    alphabet, text = load()
    cut = len(text) * 9 // 10
    data = service.datasets.upload(pieces(text[:cut]), name="manual")
    unseen = {name: rows[:256] for name, rows in pieces(text[cut:]).items()}
    optimizer = {
        "type": "adamw",
        "weight_decay": 0.1,
        "learning_rate": {"schedule": "cosine_decay", "learning_rate": 3e-3, "decay_steps": steps},
        "groups": [{"match": ["*.bias", "*.scale"], "weight_decay": 0.0}],
    }
    program = gpt(len(alphabet), layers=layers, features=features)
    with service.create_session(program, optimizer=optimizer, clip_norm=1.0) as session:
        before = session.evaluate(unseen)["loss"].item() / math.log(2)
        curves = session.fit(data, steps=steps, batch_size=batch_size)
        after = session.evaluate(unseen)["loss"].item() / math.log(2)
        print(f"{curves['step'][-1]} steps; loss {curves['loss'][0]:.3f} -> {curves['loss'][-1]:.3f}")
        print(continued(session, alphabet, "The ", length))
    return {"before": before, "after": after}


# --8<-- [end:train]


# --8<-- [start:generate]
def continued(session: bp.Session, alphabet: str, start: str, length: int, temperature: float = 0.7) -> str:
    """`start`, continued to `length` characters, each drawn from the model's prediction."""
    random = np.random.default_rng(0)
    written = [alphabet.index(character) for character in start]
    while len(written) < length:
        seen = written[-CONTEXT:]
        tokens = np.zeros((1, CONTEXT), "int64")
        tokens[0, : len(seen)] = seen  # causal: the zeros behind do not change the predictions before them
        logits = session.evaluate({"tokens": tokens}, ["logits"])["logits"][0, len(seen) - 1]
        chance = np.exp((logits - logits.max()).astype("float64") / temperature)
        written.append(int(random.choice(len(alphabet), p=chance / chance.sum())))
    return "".join(alphabet[each] for each in written)


# --8<-- [end:generate]


def main() -> int:
    given = options(__doc__, steps=1500, batch_size=32, layers=2, features=64, length=300)
    with connected(given.url) as service:
        reached = run(service, given.steps, given.batch_size, given.layers, given.features, given.length)
    print(f"unseen text: {reached['before']:.2f} -> {reached['after']:.2f} bits per character")
    return 0 if reached["after"] < reached["before"] - 2 else 1


if __name__ == "__main__":
    sys.exit(main())
