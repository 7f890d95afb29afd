"""The order of learner hooks, compared with a sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from dingsdk.worker.learner.hooks import LearnerHook, add_learner_hook, merge_hooks

POSITIONS = LearnerHook.positions


class Call(LearnerHook):
    def __call__(self, engine): ...


specs = st.lists(
    st.tuples(st.integers(0, 5) | st.floats(0, 5), st.sampled_from(POSITIONS)), max_size=30
)


def named(specs, prefix):
    return [Call(f"{prefix}{i}", p, position=where) for i, (p, where) in enumerate(specs)]


def table(hooks):
    made = {position: [] for position in POSITIONS}
    for hook in hooks:
        add_learner_hook(made, hook)
    return made


def expected(hooks):
    """Sort by priority; the sort is stable, so equal hooks keep the order of addition."""
    return {
        position: [
            hook.name
            for hook in sorted(hooks, key=lambda hook: hook.priority)
            if hook.position == position
        ]
        for position in POSITIONS
    }


def names(made):
    return {position: [hook.name for hook in hooks] for position, hooks in made.items()}


@given(specs)
def test_hooks_run_by_priority_then_in_the_order_they_were_added(specs):
    hooks = named(specs, "h")

    assert names(table(hooks)) == expected(hooks)


@given(specs, specs)
def test_merging_puts_the_first_table_first_at_equal_priority(specs1, specs2):
    first, second = named(specs1, "a"), named(specs2, "b")
    table1, table2 = table(first), table(second)
    before = names(table1), names(table2)

    merged = merge_hooks(table1, table2)
    merged["after_iter"].append(None)

    assert (names(table1), names(table2)) == before
    del merged["after_iter"][-1]
    assert names(merged) == expected(first + second)
