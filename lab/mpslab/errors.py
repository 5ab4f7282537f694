"""The one exception that reaches the user, as one line."""


class LabError(Exception):
    """What was found, what was expected and what to do, in one line."""
