"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# No property fails because a machine is slow; a failure is repeated from the example that it prints.
settings.register_profile("project", deadline=None, database=None, print_blob=True)
settings.load_profile("project")
