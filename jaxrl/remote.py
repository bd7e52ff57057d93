"""Objects in other processes, on this machine or a cluster.

with remote.open() as cluster:
    simulators = [cluster.start(Simulator, seed) for seed in range(2)]
    for future in remote.as_completed([each.call("play", 100) for each in simulators]):
        print(future.result())
"""

from concurrent.futures import as_completed, wait

from jaxrl.envs.subprocess.child import RemoteTraceback
from jaxrl.runtime.remote.cluster import Cluster, Reference, RemoteObject
from jaxrl.runtime.remote.cluster import open_cluster as open
from jaxrl.runtime.remote.decorator import remote_class
from jaxrl.runtime.remote.errors import NotEnough, RemoteError, WorkerLost

__all__ = [
    "Cluster",
    "NotEnough",
    "Reference",
    "RemoteError",
    "RemoteObject",
    "RemoteTraceback",
    "WorkerLost",
    "as_completed",
    "open",
    "remote_class",
    "wait",
]
