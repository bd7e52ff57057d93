"""A search for hyperparameters: trials train in one program, and the best are compared with the defaults on other seeds.

python examples/hyperparameter_search.py
"""

import jaxrl


def main(total_steps: int = 50_000, trials: int = 32) -> None:
    found = jaxrl.search(
        {
            "algorithm": "ppo",
            "env": "CartPole-v1",
            "total_steps": total_steps,
            "seeds": 4,
            "space": {
                "learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
                "gamma": {"low": 0.9, "high": 0.9999, "log": "complement"},
                "ent_coef": [0.0, 0.01],
            },
            "search": {"method": "random", "trials": trials, "batch": 8, "rungs": [0.1, 0.3, 1.0], "top": 2, "test_seeds": 8},
        },
        out="runs/search-python",
    )
    print(f"best settings: {found.settings}")
    print("better than the defaults" if found.comparison.is_better else "no better than the defaults")


if __name__ == "__main__":
    main()
