"""What every test of a save asks."""

import inspect
import re

import pytest

import lading

ARGUMENTS = {*inspect.signature(lading.save).parameters, "tie_word_embeddings"}


def save(model, target, **options):
    return lading.save(model, target, progress=False, **options)


def refused(call):
    """The error of a save that has written nothing. Its remedies name nothing that only loads have."""
    with pytest.raises(lading.LadingError) as failure:
        call()
    assert not failure.value.begun
    for problem in failure.value.problems:
        assert problem.remedy and set(re.findall(r"(\w+)=", problem.remedy)) <= ARGUMENTS, failure.value
        assert not re.search("allow_|leave_out|materialize|[Ll]oad again", problem.remedy), failure.value
    return failure.value


def only(target):
    """Nothing is beside the target, neither temporary nor left over."""
    return sorted(path.name for path in target.parent.iterdir()) == [target.name]
