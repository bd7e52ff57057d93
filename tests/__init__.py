"""Tests. A package, so that the package of that name that pgx installs does not hide it."""
