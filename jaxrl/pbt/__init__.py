"""Population-based training (Jaderberg et al. 2017, "Population Based Training of Neural Networks"): a population as one agent.

``make`` returns an Agent whose state holds the states of all members and whose step steps them all, in one program. After each
generation the worst members take over the learners of the best (exploit) and change their hyperparameters (explore). So ``run``,
checkpoints, ``make_train``, ``vmap`` over populations and devices work as with any agent, and nothing depends on the length of
chunks. The ancestors of the best member are recorded, and ``replay`` trains one agent with their hyperparameters as a schedule.
"""

from jaxrl.pbt.builder import make
from jaxrl.pbt.population import PopulationState, best_member, mean_scores
from jaxrl.pbt.schedule import Schedule, replay, schedule_of

__all__ = ["PopulationState", "Schedule", "best_member", "make", "mean_scores", "replay", "schedule_of"]
