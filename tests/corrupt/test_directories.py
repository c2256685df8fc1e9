"""Every directory of the corpus, through the real command."""

import pytest

from .checks import assert_accepted, assert_refused
from .directories import REFUSED, VALID


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("directories").resolve()


@pytest.fixture
def prepared(lading, folders):
    """Fills a folder; gives how to call the command, and a function that does."""

    def prepare(case):
        folder = folders / case.name
        folder.mkdir()
        call = case.make(folder)

        def run(*options):
            return lading.inspect(call.path, *call.options, *case.options, *options, env=call.env, cwd=call.cwd)

        return call, run

    return prepare


def by_name(case):
    return case.name


@pytest.mark.parametrize("case", REFUSED, ids=by_name)
def test_refused(prepared, case):
    call, run = prepared(case)
    assert_refused(run, case.problems, call.path)


@pytest.mark.parametrize("case", VALID, ids=by_name)
def test_accepted(prepared, case):
    call, run = prepared(case)
    answer = assert_accepted(run, case.warnings, call.path)
    assert {tensor["name"] for tensor in answer["tensors"]} == set(call.tensors)
    assert {shard["hash"] for shard in answer["shards"]} == set(call.hashes)
