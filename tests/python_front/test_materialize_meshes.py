"""One mesh out of many: numbers only, no ranks."""

import pytest
import torch

from lading.meshes import Axes, Grid, Span


class Mesh:
    """What is asked of a DeviceMesh."""

    def __init__(self, ranks, names=None):
        self.mesh, self.mesh_dim_names = torch.tensor(ranks), names
        self.ndim = self.mesh.ndim

    def get_coordinate(self):
        return None

    def _get_root_mesh(self):
        return self


def grid(ranks, world=8, names=None):
    return Grid(Mesh(ranks, names), {rank: rank for rank in range(world)})


def test_dims_of_a_mesh_are_spans():
    assert grid([[0, 1, 2, 3], [4, 5, 6, 7]]).spans == [(Span(2, 4),), (Span(4, 1),)]
    assert grid([[0, 4], [1, 5], [2, 6], [3, 7]]).spans == [(Span(4, 1),), (Span(2, 4),)]
    assert grid([5, 7]).spans == [(Span(2, 2),)]
    assert grid([3]).spans == [()]


def test_a_flattened_mesh_is_several_spans_outermost_first():
    assert grid([0, 1, 4, 5]).spans == [(Span(2, 4), Span(2, 1))]
    assert grid([0, 4, 1, 5]).spans == [(Span(2, 1), Span(2, 4))]


@pytest.mark.parametrize("ranks", [[0, 3, 1, 2], [0, 1, 3], [1, 0], [[0, 1], [3, 2]], [0, 0]])
def test_what_is_irregular_is_refused(ranks):
    assert "no regular order" in grid(ranks).problem


def test_a_rank_that_takes_no_part_is_named():
    assert "rank 9" in grid([8, 9], world=9).problem


def test_axes_are_what_all_spans_have_in_common():
    axes = Axes(8, [Span(2, 4), Span(4, 2), Span(8, 1)], {Span(2, 4): "dp", Span(2, 1): "tp"})
    assert [(axis.name, axis.size, axis.stride) for axis in axes.axes] == [("dp", 2, 4), ("axis1", 2, 2), ("tp", 2, 1)]
    assert axes.names_of([Span(4, 2)]) == ["dp", "axis1"]
    assert axes.names_of([Span(2, 1), Span(2, 4)]) == ["tp", "dp"]
    assert axes.names_of([Span(8, 1)]) == ["dp", "axis1", "tp"]


def test_meshes_that_do_not_fit_together():
    assert Axes(12, [Span(2, 2), Span(3, 1)], {}).problem
    assert not Axes(12, [Span(4, 3), Span(3, 1)], {}).problem


def test_one_name_for_two_spans_is_not_used_twice():
    axes = Axes(4, [Span(2, 2), Span(2, 1)], {Span(2, 2): "dp", Span(2, 1): "dp"})
    assert len({axis.name for axis in axes.axes}) == 2


def test_owners_are_said_of_the_axes_that_decide():
    axes = Axes(8, [Span(2, 4), Span(2, 2), Span(2, 1)], {Span(2, 4): "pp", Span(2, 2): "dp", Span(2, 1): "tp"})
    assert axes.owner_cut(set(range(8))) == []
    assert axes.owner_cut({4, 5, 6, 7}) == [{"owner": [1], "axes": ["pp"]}]
    assert axes.owner_cut({1, 3, 4, 6}) == [{"owner": [1, 2], "axes": ["pp", "tp"]}]
    assert axes.owner_cut({5}) == [{"owner": [5], "axes": ["pp", "dp", "tp"]}]
