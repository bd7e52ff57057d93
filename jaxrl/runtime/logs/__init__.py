"""Run folders and their files: configuration, records, trackers."""
