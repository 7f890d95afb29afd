"""Random changes to the sum tree, compared with a plain array."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dingsdk.worker.replay_buffer.sampler.sum_tree import SumTree

WEIGHTS = st.one_of(st.just(0.0), st.floats(1e-12, 1e12), st.sampled_from([1e-300, 1e300, 1.0]))
UNIFORMS = st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53]))


class TreeMachine(RuleBasedStateMachine):
    @initialize(size=st.integers(1, 600))
    def start(self, size: int) -> None:
        self.size = size
        self.tree = SumTree(size)
        self.model = np.zeros(size)

    @rule(data=st.data())
    def assign(self, data: st.DataObject) -> None:
        pairs = data.draw(
            st.lists(st.tuples(st.integers(0, self.size - 1), WEIGHTS), min_size=1, max_size=40)
        )
        for leaf, weight in pairs:
            self.model[leaf] = weight
        where, weights = zip(*pairs, strict=True)
        self.tree.assign(np.array(where), np.array(weights))

    @rule(data=st.data(), weight=WEIGHTS)
    def fill(self, data: st.DataObject, weight: float) -> None:
        first = data.draw(st.integers(0, self.size - 1))
        stop = data.draw(st.integers(first + 1, self.size))
        self.model[first:stop] = weight
        self.tree.fill(slice(first, stop), weight)

    @rule()
    def clear(self) -> None:
        self.model[:] = 0
        self.tree.clear()

    @precondition(lambda self: self.model.any())
    @rule(uniforms=st.lists(UNIFORMS, min_size=1, max_size=40))
    def draw(self, uniforms: list[float]) -> None:
        drawn = self.tree.draw(np.array(uniforms))
        assert np.all(self.model[drawn] > 0)
        assert np.all(np.diff(drawn) >= 0)
        # The target lies in the leaf's interval of the cumulative sum, except for rounding.
        upto = np.array([math.fsum(self.model[: leaf + 1]) for leaf in drawn])
        total = math.fsum(self.model)
        targets = (np.arange(len(uniforms)) + uniforms) * (total / len(uniforms))
        slack = 1e-9 * total
        assert np.all(upto >= targets - slack)
        assert np.all(upto - self.model[drawn] <= targets + slack)

    @invariant()
    def nodes_follow_the_leaves(self) -> None:
        total = math.fsum(self.model)
        assert math.isclose(self.tree._sums[0], total, rel_tol=1e-9)
        assert self.tree._lows[0] == min(self.model[self.model > 0], default=math.inf)
        assert self.tree.live == np.count_nonzero(self.model)


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
