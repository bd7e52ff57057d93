"""Parts of algorithms that learn from whole teams: values of teams, mixers and counterfactual advantages."""
