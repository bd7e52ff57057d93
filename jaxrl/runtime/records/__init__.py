"""The folder of a run and the records in it."""
