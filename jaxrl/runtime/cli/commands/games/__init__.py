"""Commands for games of two players."""
