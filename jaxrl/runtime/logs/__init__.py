"""Run folders and their files."""
