"""A product that evolves four numbers while it runs: members are tested on customers, whose rewards are logged.

python examples/es_product/product.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from jaxrl import evolution


def reward_of(params: np.ndarray, customer: int) -> float:
    """Serve a customer with some parameters; the best ones are 1, 2, 3 and 4."""
    noise = np.random.default_rng(customer).normal()
    return float(noise - np.sum((params - np.arange(1, 5)) ** 2))


def main(folder: str, hours: int = 60) -> None:
    evolution.init(folder, np.zeros(4), sigma=0.2, learning_rate=0.2)
    for hour in range(hours):
        asked = evolution.ask(folder, 16, owner="shop")
        numbers = range(asked.first, asked.first + asked.number)
        rows = evolution.member_parameters(folder, asked.version, list(numbers))
        with open(Path(folder) / "logs" / "shop.jsonl", "a") as log:
            for member, params in zip(numbers, rows, strict=True):
                record = {"run": asked.run, "version": asked.version, "member": member, "id": f"{hour}/{member}"}
                log.write(json.dumps(record | {"fitness": reward_of(params, customer=hour)}) + "\n")
        told = evolution.tell(folder)
    evolution.export(folder, Path(folder) / "theta.npy")
    print(f"version {told.version}: {np.load(Path(folder) / 'theta.npy').round(1).tolist()}")


if __name__ == "__main__":
    main(sys.argv[1])
