"""Transports: how a pool reaches its workers, in processes of this machine or on Ray."""
