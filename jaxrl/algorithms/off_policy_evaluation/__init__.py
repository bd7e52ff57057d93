"""Estimates of a policy's value from data that other policies collected."""
