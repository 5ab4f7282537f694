"""The list of judgements as a whole."""

from __future__ import annotations

import inspect

import pytest

from mpsctl.checks import report
from mpsctl.checks.judgement import EVERY_VERB, Judgement

BY_NAME = {one.name: one for one in report.JUDGEMENTS}


def test_names_are_unique_and_made_of_words() -> None:
    assert len(BY_NAME) == len(report.JUDGEMENTS)
    assert all(name.replace("-", "").isalpha() and name.islower() for name in BY_NAME)


@pytest.mark.parametrize("one", BY_NAME.values(), ids=BY_NAME)
def test_what_not_every_verb_judges_can_warn_at_most(one: Judgement) -> None:
    """Else one verb would say that all is well where another fails."""
    if one.verbs != EVERY_VERB:
        assert "failed(" not in inspect.getsource(one.judge)
        assert "CRITICAL" not in inspect.getsource(one.judge)


@pytest.mark.parametrize("one", BY_NAME.values(), ids=BY_NAME)
def test_each_has_its_sentence_for_the_documentation(one: Judgement) -> None:
    assert one.summary.endswith((".", ")"))
    assert len(one.summary.split()) <= 30
